"""Tenants take turns, and who leaves while it waits is passed over."""

import asyncio
import random

import pytest

from ops.runtime.turns import Turns


async def take(turns: Turns, tenant: str, had: list[str], end: asyncio.Event | None = None) -> None:
    async with turns.turn(tenant):
        had.append(tenant)
        await (end.wait() if end else asyncio.sleep(0))


async def test_tenant_after_tenant() -> None:
    turns, had = Turns(), list[str]()
    asks = ["a", "a", "a", "a", "b", "b", "c"]
    await asyncio.gather(*(take(turns, tenant, had) for tenant in asks))
    assert had == ["a", "b", "c", "a", "b", "a", "a"], "each waits for one turn of another tenant"
    await take(turns, "a", had)


async def test_who_leaves_while_it_waits_is_passed_over() -> None:
    turns, had, end = Turns(), list[str](), asyncio.Event()
    first = asyncio.ensure_future(take(turns, "a", had, end))
    others = [asyncio.ensure_future(take(turns, tenant, had)) for tenant in ("b", "c", "d")]
    await asyncio.sleep(0)
    others[0].cancel()
    end.set()
    await first
    others[1].cancel()  # in the turn of the loop in which it gets its own
    await asyncio.gather(*others, return_exceptions=True)
    assert had[-1] == "d"
    await take(turns, "b", had)


@pytest.mark.parametrize("seed", range(10))
async def test_one_at_a_time_whoever_leaves(seed: int) -> None:
    chance, turns, inside = random.Random(seed), Turns(), 0

    async def ask() -> None:
        nonlocal inside
        async with turns.turn(chance.choice("abc")):
            inside += 1
            assert inside == 1
            try:
                await asyncio.sleep(0)
            finally:
                inside -= 1

    tasks: list[asyncio.Task[None]] = []
    for _ in range(200):
        tasks.append(asyncio.ensure_future(ask()))
        if chance.random() < 0.4:
            chance.choice(tasks).cancel()
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(one) for one in found} <= {type(None), asyncio.CancelledError}
    async with asyncio.timeout(60), turns.turn("a"):
        assert not inside
