"""Those who look are told what schedulers tell, and nobody is asked while nobody looks."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from gateway.upstream import inside as module
from gateway.upstream.inside import BEHIND, Inside
from proto.arrays import pack
from proto.inside_pb2 import Look
from proto.rpc import Lease


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)


@pytest.fixture
async def inside(backend: Any) -> Inside:
    return Inside(backend)


def look(block: int = 0, scheduler: str = "scheduler-1") -> Look:
    found = Look(scheduler=scheduler)
    worker = found.workers.add(number=1, blocks=pack([block]), states=pack([2]))
    worker.limits.block_size = 4
    worker.sequences.add(
        number=1, request_id="r", computed=4, added_blocks=pack([0]), added_tokens=pack([1] * 4)
    )
    return found


async def until(changes: AsyncGenerator[str, None], wanted: str) -> dict[str, Any]:
    """The next change that has this key."""
    async with asyncio.timeout(60):
        while wanted not in (change := json.loads(await anext(changes))):
            pass
    found: dict[str, Any] = change
    return found


async def test_what_a_scheduler_tells_is_told_to_all(inside: Inside, scheduler: Any) -> None:
    async with aclosing(inside.watch()) as one, aclosing(inside.watch()) as other:
        assert json.loads(await anext(one)) == {"begin": True}
        while not (told := await until(one, "processes"))["processes"]:
            pass
        assert {each["service"] for each in told["processes"]} == {"tokenizer", "scheduler"}
        scheduler.looks.put_nowait(look())
        told = await until(one, "scheduler")
        assert (told["scheduler"], told["model"], told["workers"][0]["blocks"]) == ("scheduler-1", "m", [0])
        # One that comes later is told all at once.
        later = await until(other, "scheduler")
        assert later["workers"][0]["blocks"] == [0]
        found = inside.block("scheduler-1", 1, 0)
        assert found is not None
        assert found.request_id == "r"
        assert inside.model("scheduler-1") == "m"
        assert scheduler.asked == [[]]


async def test_what_is_told_to_many_is_written_once(
    inside: Inside, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def json_of(change: dict[str, Any], usual: Any = module._json) -> str:
        written.append(change.get("scheduler"))
        return str(usual(change))

    monkeypatch.setattr(module, "_json", json_of)
    async with (
        aclosing(inside.watch()) as one,
        aclosing(inside.watch()) as other,
        aclosing(inside.watch()) as third,
    ):
        for changes in (one, other, third):
            await until(changes, "begin")
        for block in range(3):
            scheduler.looks.put_nowait(look(block))
            for changes in (one, other, third):
                assert (await until(changes, "scheduler"))["workers"][0]["blocks"] == [block]
        assert written.count("scheduler-1") == 3


async def test_nobody_is_asked_while_nobody_looks(inside: Inside, backend: Any, scheduler: Any) -> None:
    assert backend.looks == 0
    async with aclosing(inside.watch()) as changes:
        scheduler.looks.put_nowait(look())
        await until(changes, "scheduler")
        assert scheduler.watching == 1
    async with asyncio.timeout(60):
        while scheduler.watching:
            await asyncio.sleep(0.001)
    assert inside.block("scheduler-1", 1, 0) is None
    assert inside.model("scheduler-1") is None
    looks = backend.looks
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert backend.looks == looks
    # The next one begins anew.
    async with aclosing(inside.watch()) as changes:
        scheduler.looks.put_nowait(look(block=3))
        assert (await until(changes, "scheduler"))["workers"][0]["blocks"] == [3]


async def test_a_scheduler_that_ends_is_told_and_asked_again(inside: Inside, scheduler: Any) -> None:
    async with aclosing(inside.watch()) as changes:
        scheduler.looks.put_nowait(look())
        await until(changes, "scheduler")
        scheduler.looks.put_nowait(None)
        assert (await until(changes, "away"))["scheduler"] == "scheduler-1"
        scheduler.looks.put_nowait(look())
        assert (await until(changes, "model"))["scheduler"] == "scheduler-1"


async def test_each_of_several_schedulers_is_watched_once(
    inside: Inside, backend: Any, scheduler: Any
) -> None:
    async with aclosing(inside.watch()) as changes:
        scheduler.looks.put_nowait(look())
        await until(changes, "scheduler")
        backend.lease_list = [*backend.lease_list, Lease("scheduler-2", "scheduler", 1, {"model": "m"})]
        async with asyncio.timeout(60):
            while len(scheduler.asked) < 2:
                await asyncio.sleep(0.001)
        assert scheduler.asked[1] == ["scheduler-1"]


async def test_who_dies_is_told(inside: Inside, backend: Any) -> None:
    async with aclosing(inside.watch()) as changes:
        while not (await until(changes, "processes"))["processes"]:
            pass
        backend.lease_list = backend.lease_list[1:]
        told = await until(changes, "processes")
        assert [each["id"] for each in told["processes"]] == ["scheduler-1"]
        (ended,) = told["ended"]
        assert ended["id"] == "tokenizer-1"
        assert ended["ended"] >= ended["seen"] > 0


async def test_a_message_queue_that_is_away_ends_nothing(inside: Inside, backend: Any) -> None:
    backend.reachable = False
    async with aclosing(inside.watch()) as changes:
        assert json.loads(await anext(changes)) == {"begin": True}
        async with asyncio.timeout(60):
            while backend.looks < 3:
                await asyncio.sleep(0.001)
        backend.reachable = True
        while not (await until(changes, "processes"))["processes"]:
            pass


async def test_who_reads_too_slowly_is_told_everything_anew(inside: Inside, scheduler: Any) -> None:
    async with aclosing(inside.watch()) as slow, aclosing(inside.watch()) as quick:
        await anext(slow)
        for block in range(BEHIND + 10):
            scheduler.looks.put_nowait(look(block))
            await until(quick, "scheduler")
        pending = [json.loads(await anext(slow)) for _ in range(3)]
        assert pending[0] == {"begin": True}
        assert len(pending[2]["workers"][0]["blocks"]) > BEHIND / 2
