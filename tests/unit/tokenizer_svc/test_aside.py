"""Texts are worked on one at a time, for tenants in turns."""

import asyncio
import threading

from tokenizer_svc.aside import LONG, Aside


async def test_one_text_at_a_time_for_tenants_in_turns_and_short_ones_beside_long_ones() -> None:
    aside, had, go = Aside(), list[str](), threading.Event()

    def work(name: str) -> str:
        go.wait(60)
        had.append(name)
        return name

    greedy = [asyncio.ensure_future(aside.run("a", LONG + 1, work, "long")) for _ in range(50)]
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(aside.run("b", LONG + 1, work, "another's"))]
    short = asyncio.ensure_future(aside.run("a", LONG, lambda: "short"))
    async with asyncio.timeout(60):
        assert await short == "short"
        assert had == []
        go.set()
        assert await asyncio.gather(*greedy, *others) == ["long"] * 50 + ["another's"]
    assert had.index("another's") == 1


async def test_what_a_caller_leaves_keeps_the_next_one_waiting() -> None:
    aside, had, go = Aside(), list[str](), threading.Event()

    def work(name: str) -> None:
        had.append(name)
        go.wait(60)
        had.append(name)

    left = asyncio.ensure_future(aside.run("a", 0, work, "left"))
    while not had:
        await asyncio.sleep(0.001)
    left.cancel()
    after = asyncio.ensure_future(aside.run("b", 0, work, "after"))
    await asyncio.sleep(0.01)
    go.set()
    await asyncio.gather(left, after, return_exceptions=True)
    assert had == ["left", "left", "after", "after"]
