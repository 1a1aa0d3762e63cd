"""Which keys a gateway accepts while keys come and go, and while Redis does."""

import asyncio
import time
from typing import Any

import pytest

from gateway.errors import Unauthorized, Unavailable
from gateway.http.key_ring import REFRESH_SECONDS, KeyRing
from ops.runtime.api_keys import Key, digest_of
from proto.rpc import BusAway

NORTH = Key(name="laptop", tenant="north")
SECRET, OTHER = "sk-" + "n" * 30, "sk-" + "o" * 30


class Store:
    """Keys that the test edits, and the clock of who reads them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.keys: dict[str, Key] = {}
        self.number: int | None = None
        self.away = False
        self.looks = self.reads = 0

    def clock(self) -> float:
        return self.now

    def put(self, secret: str, key: Key = NORTH) -> None:
        self.keys[digest_of(secret)] = key
        self.number = (self.number or 0) + 1

    def revoke(self, secret: str) -> None:
        del self.keys[digest_of(secret)]
        self.number = (self.number or 0) + 1

    async def version(self) -> str | None:
        self.looks += 1
        await asyncio.sleep(0)
        if self.away:
            raise BusAway("away")
        return None if self.number is None else str(self.number)

    async def read(self) -> dict[str, Key]:
        self.reads += 1
        return dict(self.keys)


@pytest.fixture
def store() -> Store:
    return Store()


def ring_of(store: Any, *given: str) -> KeyRing:
    return KeyRing({digest_of(secret): NORTH for secret in given}, store, store.clock)


async def accepted(ring: KeyRing, secret: str = SECRET) -> bool:
    try:
        found = await ring.find(f"Bearer {secret}")
    except Unauthorized:
        return False
    assert found == (digest_of(secret), NORTH)
    return True


async def test_keys_come_and_go_while_the_gateway_runs(store: Store) -> None:
    ring = ring_of(store)
    assert await ring.find("") is None, "there are no keys yet"
    store.put(SECRET)
    store.now += REFRESH_SECONDS
    assert await accepted(ring)
    with pytest.raises(Unauthorized):
        await ring.find("")
    store.put(OTHER)
    assert not await accepted(ring, OTHER), "not before the keys are read again"
    store.now += REFRESH_SECONDS
    assert await accepted(ring, OTHER)
    store.revoke(SECRET)
    store.now += REFRESH_SECONDS
    assert not await accepted(ring)
    assert await accepted(ring, OTHER)


async def test_the_last_key_leaves_the_door_closed(store: Store) -> None:
    ring = ring_of(store)
    store.put(SECRET)
    assert await accepted(ring)
    store.revoke(SECRET)
    store.now += REFRESH_SECONDS
    with pytest.raises(Unauthorized):
        await ring.find("")
    assert await ring_of(store).needed(), "nor does a gateway that starts later open it"


async def test_a_redis_that_lost_its_data_does_not_open_the_door(store: Store) -> None:
    ring = ring_of(store)
    store.put(SECRET)
    assert await accepted(ring)
    store.number, store.keys = None, {}
    store.now += REFRESH_SECONDS
    assert not await accepted(ring)
    with pytest.raises(Unauthorized):
        await ring.find("")


async def test_while_redis_is_away_known_keys_hold(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.put(SECRET)
    store.away = True
    ring = ring_of(store)
    with pytest.raises(Unavailable):
        await ring.find(f"Bearer {SECRET}")
    store.away = False
    store.now += REFRESH_SECONDS
    assert await accepted(ring)
    store.away = True
    store.now += 100
    assert await accepted(ring)
    assert not await accepted(ring, OTHER)
    assert SECRET not in caplog.text


async def test_before_redis_was_ever_reached_nobody_passes_but_with_a_given_key(store: Store) -> None:
    store.away = True
    ring = ring_of(store, SECRET)
    assert await accepted(ring)
    with pytest.raises(Unavailable, match="cannot be reached"):
        await ring.find(f"Bearer {OTHER}")
    store.away = False
    store.now += REFRESH_SECONDS
    assert not await accepted(ring, OTHER)


async def test_keys_of_file_and_redis_side_by_side(store: Store) -> None:
    store.put(OTHER)
    ring = ring_of(store, SECRET)
    assert await accepted(ring)
    assert await accepted(ring, OTHER)


async def test_a_key_ends_with_its_time(store: Store) -> None:
    store.put(SECRET, NORTH.model_copy(update={"expires": time.time() + 1000}))
    store.put(OTHER, NORTH.model_copy(update={"expires": time.time() - 0.001}))
    ring = ring_of(store)
    found = await ring.find(f"Bearer {SECRET}")
    assert found is not None
    with pytest.raises(Unauthorized, match="expired"):
        await ring.find(f"Bearer {OTHER}")


async def test_a_crowd_reads_once_and_guessing_reads_nothing(store: Store) -> None:
    store.put(SECRET)
    ring = ring_of(store)
    await asyncio.gather(*(accepted(ring, f"sk-guess-{number}") for number in range(100)))
    assert (store.looks, store.reads) == (1, 1)
    store.now += REFRESH_SECONDS
    await accepted(ring)
    assert (store.looks, store.reads) == (2, 1), "keys that have not changed are not read again"


async def test_without_redis_or_file_everybody_passes() -> None:
    assert await KeyRing().find("Bearer x") is None
