"""Ids in sorted sets: a few at a time, and whatever becomes of the others meanwhile."""

from typing import Any

import pytest

from gateway.errors import BadRequest
from gateway.upstream.listed import IDS_AT_ONCE, listed
from proto.rpc.line import Line

IDS = [f"id{number:04}" for number in range(2 * IDS_AT_ONCE + 5)]


class Counting:
    """Runs commands, and notes how many ids each brings."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.brought: list[int] = []

    async def __call__(self, *command: str | int | bytes) -> Any:
        (found,) = await self._line.execute(command)
        self.brought += [len(found) // 2] if command[0] == "ZRANGE" else []
        return found


@pytest.fixture
async def key(line: Line, prefix: str) -> str:
    score = 1_700_000_000_000_000  # microseconds
    scores = (part for number, one in enumerate(IDS) for part in (score + number, one))
    await line.execute(("ZADD", f"{prefix}ids", *scores))
    return f"{prefix}ids"


@pytest.mark.parametrize("newest_first", [False, True])
async def test_all_are_found_in_order(line: Line, key: str, newest_first: bool) -> None:
    run, ids = Counting(line), IDS[::-1] if newest_first else IDS
    assert [one async for one in listed(run, key, None, newest_first)] == ids
    assert run.brought == [IDS_AT_ONCE, IDS_AT_ONCE, 5]
    assert [one async for one in listed(run, key, ids[200], newest_first)] == ids[201:]
    assert [one async for one in listed(run, key, ids[-1], newest_first)] == []


async def test_what_goes_meanwhile_hides_nothing(line: Line, key: str) -> None:
    found = []
    async for one in listed(Counting(line), key, None, False):
        await line.execute(("ZREM", key, one))
        found.append(one)
    assert found == IDS


async def test_what_is_not_there_has_nothing_behind_it(line: Line, key: str) -> None:
    with pytest.raises(BadRequest, match="'after': there is no 'x'") as refused:
        await anext(listed(Counting(line), key, "x", False))
    assert refused.value.param == "after"
