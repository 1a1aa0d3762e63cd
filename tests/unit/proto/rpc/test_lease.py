"""Leases as their key's value."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from proto.rpc import BusAway
from proto.rpc.lease import MAX_BYTES, RETRY_SECONDS, Lease, LeaseKeeper, LeaseReader


def test_a_lease_comes_back_as_it_was() -> None:
    lease = Lease("w-1", "worker", 3, {"model": "m", "n": 1}, "host", 42, ("calls:Worker:m",))
    assert Lease.decode("w-1", lease.encode()) == lease


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"{}", b"[]", b"3", b"\xff"),
        b'{"service": "x", "epoch": "", "info": {}}',
        b'{"service": "x", "epoch": Infinity, "info": {}}',
        b'{"service": "x", "epoch": 1, "pid": -Infinity, "info": {}}',
        b'{"service": "x", "epoch": 1, "info": ' + b'{"a":' * 30_000 + b"1" + b"}" * 30_001,
        b'{"service": "x", "epoch": ' + b"9" * 5000 + b', "info": {}}',
        b'{"service": "x", "epoch": 1, "info": {}}' + b" " * MAX_BYTES,
    ],
    ids=range(11),
)
def test_what_is_no_lease(value: bytes) -> None:
    assert Lease.decode("x", value) is None


def test_doors_are_names() -> None:
    lease = Lease.decode("x", b'{"service": "x", "epoch": 1, "info": {}, "doors": [[1], {}]}')
    assert lease is not None
    assert set(lease.doors) == {"[1]", "{}"}, "a set can hold them"


def test_what_cannot_be_read_is_missing_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    reader, good = LeaseReader(), Lease("a", "worker", 1)
    for _ in range(3):
        assert reader.read({"a": good.encode(), "b": b"{", "\ud800": b"["}) == {"a": good}
    assert len(caplog.records) == 2


@pytest.mark.parametrize("failing", ["enlist", "renewed"])
async def test_a_process_is_listed_and_looks_after_its_doors_whichever_fails(failing: str) -> None:
    done, twice = list[str](), asyncio.Event()

    def work(name: str) -> object:
        async def run(*_: object) -> bool:
            done.append(name)
            if len(done) >= 8:
                twice.set()
            if name == failing:
                raise BusAway(name)
            return True

        return run

    link = SimpleNamespace(renew_lease=work("renew"), enlist=work("enlist"))
    keeper = LeaseKeeper(link, "a-1", "test", 0.03, lambda: None)  # type: ignore[arg-type]
    keeping = asyncio.ensure_future(keeper.keep(work("before"), work("renewed")))  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        await twice.wait()
    keeping.cancel()
    assert done[:8] == ["before", "renew", "enlist", "renewed"] * 2
    assert keeper.is_away


@pytest.fixture
async def keeper() -> LeaseKeeper:
    """Its link is a mock, which renews and takes whatever it is asked to."""
    return LeaseKeeper(AsyncMock(), "a-1", "a", 10.0, Mock())


async def test_a_lease_is_held_from_the_time_at_which_it_was_asked_for(keeper: LeaseKeeper) -> None:
    assert not keeper.held
    await keeper.take()
    assert keeper.held


async def test_while_the_bus_is_away_a_missing_lease_says_nothing(keeper: LeaseKeeper) -> None:
    assert keeper.trustworthy
    keeper.away(BusAway("gone"))
    assert not keeper.trustworthy


async def test_a_lost_lease_fences_once_however_often_it_cannot_be_taken_anew(keeper: LeaseKeeper) -> None:
    link: Any = keeper._link
    fence: Any = keeper._fence
    link.renew_lease.return_value = False
    link.take_lease.side_effect = [BusAway("full"), None, None]
    with pytest.raises(BusAway):
        await keeper.renew()
    assert keeper.is_away
    await keeper.renew()
    assert (keeper.epoch, fence.call_count) == (2, 1)
    assert keeper.held
    await keeper.renew()
    assert (keeper.epoch, fence.call_count) == (3, 2), "lost again"


async def test_a_process_that_ends_renews_no_lease(keeper: LeaseKeeper) -> None:
    keeper.end()
    await keeper.renew()
    link: Any = keeper._link
    assert not link.mock_calls


async def test_the_bus_is_back_after_a_while_and_then_all_have_time_to_renew(keeper: LeaseKeeper) -> None:
    keeper.away(BusAway("gone"))
    failed = keeper._failed
    keeper._may_be_back(failed + 2 * RETRY_SECONDS)
    assert keeper.is_away, "something has failed just now"
    keeper._may_be_back(failed + 2 * RETRY_SECONDS + 0.01)
    assert not keeper.is_away
    assert not keeper.trustworthy
    keeper._trusted_from -= 10.0
    assert keeper.trustworthy
