"""A bus that goes wrong on demand: wraps another one to delay, drop, repeat and disconnect."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from proto.rpc.bus import Batch, Bus, DoorState, Link, Received
from proto.rpc.errors import BusAway

T = TypeVar("T")
Drop = Callable[[str, bytes], bool]


class FaultyBus:
    """The faults of one process's link. They can be changed at any time."""

    def __init__(self, bus: Bus) -> None:
        self.lag = 0.0
        """Seconds by which each write is late."""
        self.drop: Drop | None = None
        """`drop(process id, payload)`: whether an entry for an inbox gets lost."""
        self.drop_opening: Drop | None = None
        """`drop_opening(door, payload)`: whether a call gets lost at its door."""
        self.repeat = 1
        """How many times each write reaches the bus, calls at their door included."""
        self.lose_answers = 0
        """How many of the next writes take effect and then fail, as if the connection broke."""
        self._bus = bus
        self._connected = asyncio.Event()
        self._connected.set()

    async def connect(self, process_id: str) -> "FaultyLink":
        """See `Bus.connect`."""
        return FaultyLink(self, await self._bus.connect(process_id))

    def disconnect(self) -> None:
        """Everything fails until `reconnect`. To its peers the process is dead once its lease has run out."""
        self._connected.clear()

    def reconnect(self) -> None:
        self._connected.set()

    @property
    def connected(self) -> bool:
        return self._connected.is_set()


class FaultyLink:
    """See `proto.rpc.bus.Link`."""

    def __init__(self, faults: FaultyBus, link: Link) -> None:
        self._faults, self._link = faults, link
        self._lost: set[bytes] = set()

    async def _do(self, work: Callable[[], Awaitable[T]]) -> T:
        if not self._faults.connected:
            raise BusAway("disconnected")
        return await work()

    async def _wait(self, work: Callable[[], Awaitable[T]]) -> T:
        """A read that blocks. A disconnection breaks it off only when it is called again."""
        result = await self._do(work)
        if not self._faults.connected:
            raise BusAway("disconnected")
        return result

    async def publish(self, batch: Batch, again: bool = False) -> Sequence[str | None]:
        """See `Link.publish`."""
        faults = self._faults
        if faults.lag:
            await asyncio.sleep(faults.lag)
        if (drop := faults.drop) is not None:
            kept = [entry for entry in batch.entries if not drop(*entry)]
            batch = replace(batch, entries=kept)
        opens, batch = batch.opens, self._without_lost(batch)
        ids = await self._do(lambda: self._link.publish(batch, again))
        if len(batch.opens) < len(opens):
            left = iter(ids)
            ids = () if again else ["1-1" if one in self._lost else next(left) for _, one in opens]
        for _ in range(faults.repeat - 1):
            await self._do(lambda: self._link.publish(batch))
        if faults.lose_answers:
            faults.lose_answers -= 1
            raise BusAway("the answer was lost")
        return ids

    def _without_lost(self, batch: Batch) -> Batch:
        if (drop := self._faults.drop_opening) is not None:
            self._lost |= {payload for door, payload in batch.opens if drop(door, payload)}
        if not self._lost:
            return batch
        return replace(batch, opens=[one for one in batch.opens if one[1] not in self._lost])

    async def read(self, after: str) -> Sequence[Received]:
        """See `Link.read`."""
        return await self._wait(lambda: self._link.read(after))

    async def tail(self) -> str:
        """See `Link.tail`."""
        return await self._do(self._link.tail)

    async def trim(self, upto: str) -> None:
        """See `Link.trim`."""
        await self._do(lambda: self._link.trim(upto))

    async def join(self, door: str) -> None:
        """See `Link.join`."""
        await self._do(lambda: self._link.join(door))

    async def take(self, door: str, count: int) -> Sequence[Received]:
        """See `Link.take`."""
        return await self._wait(lambda: self._link.take(door, count))

    async def missing(self, door: str, entry_ids: Sequence[str]) -> set[str]:
        """See `Link.missing`."""
        return await self._do(lambda: self._link.missing(door, entry_ids))

    async def wake(self, door: str) -> None:
        """See `Link.wake`."""
        await self._do(lambda: self._link.wake(door))

    async def pending(self, door: str) -> Sequence[Received]:
        """See `Link.pending`."""
        return await self._do(lambda: self._link.pending(door))

    async def look(self, door: str) -> DoorState:
        """See `Link.look`."""
        return await self._do(lambda: self._link.look(door))

    async def give_back(self, door: str, entry_ids: Sequence[str]) -> None:
        """See `Link.give_back`."""
        await self._do(lambda: self._link.give_back(door, entry_ids))

    async def adopt(self, door: str, of_the_dead: bool) -> Received | None:
        """See `Link.adopt`."""
        return await self._do(lambda: self._link.adopt(door, of_the_dead))

    def clock(self) -> float:
        """See `Link.clock`."""
        return self._link.clock()

    async def take_lease(self, value: bytes, seconds: float) -> None:
        """See `Link.take_lease`."""
        await self._do(lambda: self._link.take_lease(value, seconds))

    async def renew_lease(self, value: bytes, seconds: float) -> bool:
        """See `Link.renew_lease`."""
        return await self._do(lambda: self._link.renew_lease(value, seconds))

    async def enlist(self) -> None:
        """See `Link.enlist`."""
        await self._do(self._link.enlist)

    async def leases(self, process_ids: Sequence[str] | None = None) -> dict[str, bytes]:
        """See `Link.leases`."""
        return await self._do(lambda: self._link.leases(process_ids))

    async def close(self, goodbye: bool) -> None:
        """See `Link.close`."""
        await self._link.close(goodbye and self._faults.connected)
