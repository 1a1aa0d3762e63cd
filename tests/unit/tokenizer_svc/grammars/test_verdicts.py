"""Verdicts on grammars: how long they hold and for whom, kept in a process or in Redis."""

from types import SimpleNamespace

import pytest

from proto.rpc.line import Line
from proto.rpc.seal import Seal
from tokenizer_svc.grammars import shared_verdicts as shared
from tokenizer_svc.grammars import verdicts as module
from tokenizer_svc.grammars.shared_verdicts import NAME_BYTES, RedisVerdicts
from tokenizer_svc.grammars.verdicts import (
    LASTING_SECONDS,
    PASSING_SECONDS,
    MemoryVerdicts,
    Verdict,
    Verdicts,
)

GOOD = {"text": 'start: "❄"'}
BAD = {"reason": "'strin' is no type"}
SLOW = {"reason": "it takes more than 0.25 s to compile", "granted": 0.25}


class Clock:
    """The time of day that verdicts go by."""

    def __init__(self) -> None:
        self.now = 1.8e9

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for user in (module, shared):
        patched = SimpleNamespace(time=clock.time, monotonic=lambda: 0.0)
        monkeypatch.setattr(user, "time", patched)
    return clock


@pytest.fixture(params=["memory", "redis"])
def store(
    request: pytest.FixtureRequest, line: Line, prefix: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Verdicts:
    monkeypatch.setattr(module, "MOST_KEPT", 4)
    monkeypatch.setattr(shared, "PLACES", 4)
    monkeypatch.setattr(shared, "WAIT_SECONDS", 60.0)
    return MemoryVerdicts() if request.param == "memory" else RedisVerdicts(line, prefix, Seal(b"secret"))


def name(number: int) -> bytes:
    return number.to_bytes(4).ljust(NAME_BYTES, b"n")


async def test_what_is_put_is_found_under_its_name(store: Verdicts) -> None:
    for number, fields in enumerate((GOOD, BAD, SLOW)):
        verdict = Verdict(**fields)
        await store.put(name(number), verdict)
        assert await store.get(name(number)) == verdict
    assert await store.get(name(3)) is None
    assert await store.get(name(4)) is None, "another name may have the same place"


async def test_one_takes_the_place_of_another(store: Verdicts) -> None:
    await store.put(name(1), Verdict(**SLOW))
    await store.put(name(1), Verdict(**GOOD))
    assert await store.get(name(1)) == Verdict(**GOOD)


async def test_a_bounded_number_is_kept_the_newest_ones(store: Verdicts) -> None:
    for number in range(20):
        await store.put(name(number), Verdict(**GOOD))
    kept = [number for number in range(20) if await store.get(name(number)) is not None]
    assert kept == [16, 17, 18, 19]


async def test_want_of_time_does_not_hold_for_long(store: Verdicts, clock: Clock) -> None:
    await store.put(name(1), Verdict(**SLOW))
    await store.put(name(2), Verdict(**BAD))
    clock.now += PASSING_SECONDS - 1
    assert await store.get(name(1)) is not None
    clock.now += 2
    assert await store.get(name(1)) is None
    assert await store.get(name(2)) is not None
    clock.now += LASTING_SECONDS
    assert await store.get(name(2)) is None


async def test_one_that_is_handed_on_ends_when_it_would_have_ended(store: Verdicts, clock: Clock) -> None:
    await store.put(name(1), Verdict(**SLOW))
    clock.now += PASSING_SECONDS - 1
    found = await store.get(name(1))
    assert found is not None
    other = MemoryVerdicts()
    await other.put(name(1), found)
    clock.now += 2
    assert await other.get(name(1)) is None


async def test_a_clock_that_is_far_ahead_does_not_make_one_that_holds_for_years(
    store: Verdicts, clock: Clock
) -> None:
    clock.now += 1000
    verdict = Verdict(**SLOW)
    clock.now -= 1000
    await store.put(name(1), verdict)
    assert await store.get(name(1)) is None


def test_a_refusal_for_want_of_time_is_none_for_who_has_more() -> None:
    slow = Verdict(**SLOW)
    assert (slow.settles(0.1), slow.settles(0.25), slow.settles(2.0)) == (True, True, False)
    assert Verdict(**BAD).settles(2.0)
    assert Verdict(**GOOD).settles(2.0)
