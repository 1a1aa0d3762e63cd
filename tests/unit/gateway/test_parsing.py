"""What is large is parsed in a thread, in turns."""

import asyncio
import threading

import pytest

from gateway.parsing import PARSED_AT_ONCE, PARTS_AT_ONCE, parsed, parsed_each

PARTS = range(3 * PARTS_AT_ONCE + 1)
LARGE = PARSED_AT_ONCE + 1


def thread_of(_: object = None) -> str:
    return threading.current_thread().name.split("_")[0]


async def test_what_is_small_is_parsed_at_once() -> None:
    assert await parsed(PARSED_AT_ONCE, thread_of) == "MainThread"
    assert await parsed(LARGE, thread_of) == "parse"
    assert set(await parsed_each(PARSED_AT_ONCE, thread_of, PARTS)) == {"MainThread"}
    assert set(await parsed_each(LARGE, thread_of, PARTS)) == {"parse"}


async def test_each_part_is_parsed_in_order() -> None:
    for size in (0, LARGE):
        assert await parsed_each(size, str, PARTS) == list(map(str, PARTS))
        assert await parsed_each(size, str, ()) == []
        with pytest.raises(ZeroDivisionError):
            await parsed_each(size, lambda part: 1 // part, PARTS)


async def test_others_have_their_turn_between_parts() -> None:
    order: list[str] = []
    many = asyncio.ensure_future(parsed_each(LARGE, lambda _: order.append("part"), PARTS))
    await asyncio.sleep(0)
    await parsed(LARGE, lambda: order.append("other"))
    await many
    assert order.index("other") <= 2 * PARTS_AT_ONCE
