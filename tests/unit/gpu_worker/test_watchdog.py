"""When a device counts as hung, and when it is only slow."""

import asyncio

import pytest

from gpu_worker import watchdog as module
from gpu_worker.watchdog import CONTEXT, TICKS, AwakeClock, Watchdog
from tests.support.virtual import VirtualClock, VirtualLoop, virtual
from tests.unit.gpu_worker.conftest import plan

PATIENCE = 24.0
TICK = PATIENCE / TICKS
SOON = PATIENCE + 2 * TICK
"""Seconds within which a step without an end is noticed."""


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", VirtualClock)


def step(tokens: int, start: int = 0):
    return plan(1, [(0, start, tokens, 1)])


def stall(seconds: float) -> None:
    """Stop the process for this time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.stall(seconds)


async def hung_within(watchdog: Watchdog, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await watchdog.hung()
    except TimeoutError:
        return False
    return True


async def hung_in_step(watchdog: Watchdog, tokens: int, seconds: float) -> bool:
    """Whether the device counts as hung within a step that takes these seconds."""
    watchdog.begun(step(tokens))
    hung = await hung_within(watchdog, seconds)
    watchdog.answered()
    return hung


def experienced() -> Watchdog:
    """A watchdog that has seen a step of ten tokens, which took no time."""
    watchdog = Watchdog(PATIENCE, first=3 * PATIENCE)
    watchdog.begun(step(10))
    watchdog.answered()
    return watchdog


@virtual
async def test_a_step_without_an_end() -> None:
    watchdog = experienced()
    watchdog.begun(step(10))
    assert not await hung_within(watchdog, 0.8 * PATIENCE)
    assert await hung_within(watchdog, SOON)


@virtual
async def test_nothing_to_do_is_not_a_hang() -> None:
    watchdog = experienced()
    assert not await hung_within(watchdog, 2 * PATIENCE)


@virtual
async def test_steps_given_ahead_count_from_the_end_of_the_one_before() -> None:
    watchdog = experienced()
    watchdog.begun(step(10))
    for _ in range(20):
        watchdog.begun(step(10))
        assert not await hung_within(watchdog, 0.09 * PATIENCE)
        watchdog.answered()
    assert await hung_within(watchdog, SOON)


@virtual
async def test_the_first_step_may_take_longer() -> None:
    watchdog = Watchdog(PATIENCE, first=3 * PATIENCE)
    watchdog.begun(step(10))
    assert not await hung_within(watchdog, 2 * PATIENCE)
    assert await hung_within(watchdog, SOON)


@virtual
async def test_a_slow_machine_has_slow_steps() -> None:
    watchdog = Watchdog(PATIENCE, first=3 * PATIENCE)
    assert not await hung_in_step(watchdog, 10, seconds=PATIENCE / 4)
    assert not await hung_in_step(watchdog, 10, seconds=1.5 * PATIENCE)
    watchdog.begun(step(1))
    assert not await hung_within(watchdog, 4 * PATIENCE)


@virtual
async def test_a_larger_step_may_take_longer_in_proportion() -> None:
    watchdog = Watchdog(PATIENCE, first=3 * PATIENCE)
    assert not await hung_in_step(watchdog, 10, seconds=PATIENCE / 20)
    assert not await hung_in_step(watchdog, 100, seconds=3 * PATIENCE)


@virtual
async def test_tokens_behind_a_long_context_may_take_longer() -> None:
    watchdog = Watchdog(PATIENCE, first=3 * PATIENCE)
    assert not await hung_in_step(watchdog, 10, seconds=PATIENCE / 5)
    watchdog.begun(step(10, start=7 * CONTEXT))
    assert not await hung_within(watchdog, 12 * PATIENCE)
    assert await hung_within(watchdog, 6 * PATIENCE)


@virtual
async def test_more_tokens_may_take_longer_than_few_behind_long_contexts() -> None:
    """In models in which a context takes no time."""
    watchdog = Watchdog(PATIENCE, first=3 * PATIENCE)
    watchdog.begun(step(10, start=7 * CONTEXT))
    assert not await hung_within(watchdog, PATIENCE / 5)
    watchdog.answered()
    assert not await hung_in_step(watchdog, 40, seconds=7 * PATIENCE)


@virtual
async def test_a_stopped_process_waits_for_nothing() -> None:
    """Its loop is stopped along with its steps."""
    watchdog = experienced()
    watchdog.begun(step(10))
    ticking = asyncio.ensure_future(watchdog.hung())
    await asyncio.sleep(TICK)
    stall(2 * PATIENCE)
    await asyncio.sleep(2 * TICK)
    assert not ticking.done()
    ticking.cancel()


@virtual
async def test_the_clock_shows_little_more_than_at_its_last_tick() -> None:
    clock = AwakeClock(most=2)
    stall(1)
    assert clock.now() == 1
    stall(9)
    assert clock.now() == 2
    clock.tick()
    assert clock.now() == 2
    stall(1)
    assert clock.now() == 3
