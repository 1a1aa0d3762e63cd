"""When a device counts as hung, and when it is only slow."""

import asyncio
import time

import pytest

from gpu_worker.watchdog import TICKS, AwakeClock, Watchdog
from tests.unit.gpu_worker.conftest import plan

PATIENCE = 0.24
TICK = PATIENCE / TICKS
LONG = 20.0
"""Seconds that are waited for what comes sooner or later."""


def step(tokens: int):
    return plan(1, [(0, 0, tokens, 1)])


async def hung_within(watchdog: Watchdog, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await watchdog.hung()
    except TimeoutError:
        return False
    return True


async def take(watchdog: Watchdog, tokens: int, seconds: float) -> None:
    watchdog.begun(step(tokens))
    assert not await hung_within(watchdog, seconds)
    watchdog.answered()


@pytest.fixture
async def watchdog() -> Watchdog:
    """One that has seen a step of ten tokens, which took no time."""
    watchdog = Watchdog(PATIENCE, first=3 * PATIENCE)
    watchdog.begun(step(10))
    watchdog.answered()
    return watchdog


async def test_a_step_without_an_end(watchdog) -> None:
    watchdog.begun(step(10))
    assert not await hung_within(watchdog, 0.8 * PATIENCE)
    assert await hung_within(watchdog, LONG)


async def test_nothing_to_do_is_not_a_hang(watchdog) -> None:
    assert not await hung_within(watchdog, 2 * PATIENCE)


async def test_steps_given_ahead_count_from_the_end_of_the_one_before(watchdog) -> None:
    watchdog.begun(step(10))
    for _ in range(20):
        watchdog.begun(step(10))
        assert not await hung_within(watchdog, 0.09 * PATIENCE)
        watchdog.answered()
    assert await hung_within(watchdog, LONG)


async def test_the_first_step_may_take_longer() -> None:
    watchdog = Watchdog(PATIENCE, first=3 * PATIENCE)
    watchdog.begun(step(10))
    assert not await hung_within(watchdog, 2 * PATIENCE)
    assert await hung_within(watchdog, LONG)


async def test_a_slow_machine_has_slow_steps() -> None:
    watchdog = Watchdog(PATIENCE, first=3 * PATIENCE)
    await take(watchdog, 10, seconds=PATIENCE / 4)
    await take(watchdog, 10, seconds=1.5 * PATIENCE)
    watchdog.begun(step(1))
    assert not await hung_within(watchdog, 4 * PATIENCE)


async def test_a_larger_step_may_take_longer_in_proportion() -> None:
    watchdog = Watchdog(PATIENCE, first=3 * PATIENCE)
    await take(watchdog, 10, seconds=PATIENCE / 20)
    await take(watchdog, 100, seconds=3 * PATIENCE)


async def test_a_stopped_process_waits_for_nothing(watchdog) -> None:
    """Its loop is stopped along with its steps."""
    watchdog.begun(step(10))
    ticking = asyncio.ensure_future(watchdog.hung())
    await asyncio.sleep(TICK)
    time.sleep(2 * PATIENCE)  # noqa: ASYNC251
    await asyncio.sleep(2 * TICK)
    assert not ticking.done()
    ticking.cancel()


def test_the_clock_shows_little_more_than_at_its_last_tick() -> None:
    clock = AwakeClock(most=0.02)
    time.sleep(0.1)
    assert clock.now() == pytest.approx(0.02)
    clock.tick()
    assert clock.now() >= 0.02
