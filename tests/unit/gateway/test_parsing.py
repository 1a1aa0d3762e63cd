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
    assert await parsed("t", PARSED_AT_ONCE, thread_of) == "MainThread"
    assert await parsed("t", LARGE, thread_of) == "parse"
    assert set(await parsed_each("t", PARSED_AT_ONCE, thread_of, PARTS)) == {"MainThread"}
    assert set(await parsed_each("t", LARGE, thread_of, PARTS)) == {"parse"}


async def test_each_part_is_parsed_in_order() -> None:
    for size in (0, LARGE):
        assert await parsed_each("t", size, str, PARTS) == list(map(str, PARTS))
        assert await parsed_each("t", size, str, ()) == []
        with pytest.raises(ZeroDivisionError):
            await parsed_each("t", size, lambda part: 1 // part, PARTS)


async def test_others_have_their_turn_between_parts() -> None:
    order: list[str] = []
    many = asyncio.ensure_future(parsed_each("t", LARGE, lambda _: order.append("part"), PARTS))
    await asyncio.sleep(0)
    await parsed("u", LARGE, lambda: order.append("other"))
    await many
    assert order.index("other") <= 2 * PARTS_AT_ONCE


async def test_tenants_take_turns() -> None:
    order, go = list[str](), threading.Event()

    def parse(tenant: str) -> None:
        go.wait(60)
        order.append(tenant)

    many = [asyncio.ensure_future(parsed("a", LARGE, lambda: parse("a"))) for _ in range(50)]
    await asyncio.sleep(0)
    other = asyncio.ensure_future(parsed("b", LARGE, lambda: parse("b")))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*many, other)
    assert order.index("b") == 1
