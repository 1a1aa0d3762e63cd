"""The bus within one event loop: the reference that `RedisBus` is tested against."""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from proto.rpc.bus import (
    DEAD_LETTERS,
    GIVEN_BACK,
    MAX_DELIVERIES,
    MAX_ENTRY_BYTES,
    Batch,
    DoorState,
    Received,
    inbox_of,
)

Id = tuple[int, int]


@dataclass
class Stream:
    """Entries by id, and which process has taken which of them."""

    entries: dict[Id, bytes | None] = field(default_factory=dict)
    delivered: Id = (0, 0)
    pending: dict[Id, str] = field(default_factory=dict)
    deliveries: dict[Id, int] = field(default_factory=dict)
    """Processes that each pending entry was given to."""
    consumers: set[str] = field(default_factory=set)
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    def above(self, entry: Id, count: int | None = None) -> list[Id]:
        return list(itertools.islice((one for one in self.entries if one > entry), count))


class MemoryBus:
    """All links of one bus object meet; it must be used in one event loop."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = defaultdict(Stream)
        self._leases: dict[str, tuple[bytes, float]] = {}
        self._newest: Id = (0, 0)

    async def connect(self, process_id: str) -> "MemoryLink":
        """A link for one process."""
        return MemoryLink(self, process_id)

    def add(self, stream: str, payload: bytes | None) -> str:
        """Append an entry and return its id."""
        now, (newest, number) = int(time.time() * 1000), self._newest
        entry = self._newest = (now, 0) if now > newest else (newest, number + 1)
        self.streams[stream].entries[entry] = payload
        self.streams[stream].grown.set()
        return _text(entry)

    def alive(self, process_id: str) -> bool:
        return process_id in self.leases()

    def leases(self) -> dict[str, bytes]:
        """The leases that have not run out."""
        now = asyncio.get_running_loop().time()
        self._leases = {one: lease for one, lease in self._leases.items() if lease[1] > now}
        return {one: value for one, (value, _) in self._leases.items()}

    def set_lease(self, process_id: str, value: bytes, seconds: float) -> None:
        self._leases[process_id] = (value, asyncio.get_running_loop().time() + seconds)

    def drop_lease(self, process_id: str) -> None:
        """End a lease at once, as a launcher does for a process that it saw die."""
        self._leases.pop(process_id, None)


class MemoryLink:
    """See `proto.rpc.bus.Link`."""

    def __init__(self, bus: MemoryBus, process_id: str) -> None:
        self._bus = bus
        self._id = process_id
        self._inbox = inbox_of(process_id)
        self._published = 0

    async def publish(self, batch: Batch, again: bool = False) -> Sequence[str]:
        """See `Link.publish`."""
        if again and batch.number <= self._published:
            return ()
        self._published = batch.number
        ids = [self._bus.add(door, payload) for door, payload in batch.opens]
        for process_id, payload in batch.entries:
            if inbox_of(process_id) in self._bus.streams:
                self._bus.add(inbox_of(process_id), payload)
        for door, entry in batch.settled:
            self._bus.streams[door].entries.pop(_number(entry), None)
            self._bus.streams[door].pending.pop(_number(entry), None)
            self._bus.streams[door].deliveries.pop(_number(entry), None)
        for letter in batch.letters:
            self._bus.add(DEAD_LETTERS, f"{letter.stream} {letter.id} {letter.reason}".encode())
        return ids

    async def read(self, after: str) -> Sequence[Received]:
        """See `Link.read`."""
        stream = self._bus.streams[self._inbox]
        while not (found := stream.above(_number(after))):
            stream.grown.clear()
            await stream.grown.wait()
        return [_received(entry, stream.entries[entry]) for entry in found]

    async def tail(self) -> str:
        """See `Link.tail`."""
        return _text(max(self._bus.streams[self._inbox].entries, default=(0, 0)))

    async def trim(self, upto: str) -> None:
        """See `Link.trim`."""
        entries = self._bus.streams[self._inbox].entries
        for entry in [one for one in entries if one <= _number(upto)]:
            del entries[entry]

    async def join(self, door: str) -> None:
        """See `Link.join`."""
        self._bus.streams[door].consumers.add(self._id)

    async def take(self, door: str, count: int) -> Sequence[Received]:
        """See `Link.take`."""
        stream = self._bus.streams[door]
        if not stream.above(stream.delivered):
            stream.grown.clear()
            await stream.grown.wait()
        found = stream.above(stream.delivered, count)
        for entry in found:
            stream.delivered = entry
            stream.pending[entry], stream.deliveries[entry] = self._id, 1
        return [_received(entry, stream.entries[entry]) for entry in found]

    async def missing(self, door: str, entry_ids: Sequence[str]) -> set[str]:
        """See `Link.missing`."""
        entries = self._bus.streams[door].entries
        return {one for one in entry_ids if _number(one) not in entries}

    async def wake(self, door: str) -> None:
        """See `Link.wake`."""
        self._bus.streams[door].grown.set()

    async def pending(self, door: str) -> Sequence[Received]:
        """See `Link.pending`."""
        stream = self._bus.streams[door]
        mine = [entry for entry, owner in stream.pending.items() if owner == self._id]
        return [self._received(stream, entry) for entry in mine]

    async def look(self, door: str) -> DoorState:
        """See `Link.look`."""
        stream = self._bus.streams[door]
        oldest = min(stream.entries, default=None)
        age = 0.0 if oldest is None else max(0.0, time.time() - oldest[0] / 1000)
        return DoorState(len(stream.entries) - len(stream.pending), len(stream.pending), age)

    async def give_back(self, door: str, entry_ids: Sequence[str]) -> None:
        """See `Link.give_back`."""
        stream = self._bus.streams[door]
        for entry in map(_number, entry_ids):
            if stream.pending.get(entry) == self._id:
                stream.pending[entry] = GIVEN_BACK
                stream.deliveries[entry] -= 1

    async def adopt(self, door: str, of_the_dead: bool) -> Received | None:
        """See `Link.adopt`."""
        stream = self._bus.streams[door]
        if of_the_dead:
            stream.consumers = {one for one in stream.consumers if self._bus.alive(one)} | {self._id}
        for entry, owner in stream.pending.items():
            if owner == GIVEN_BACK or (of_the_dead and owner != self._id and not self._bus.alive(owner)):
                stream.pending[entry] = self._id
                stream.deliveries[entry] += 1
                return self._received(stream, entry)
        return None

    def _received(self, stream: Stream, entry: Id) -> Received:
        deliveries = stream.deliveries[entry]
        return _received(entry, stream.entries[entry] if deliveries <= MAX_DELIVERIES else None, deliveries)

    def clock(self) -> float:
        """See `Link.clock`."""
        return time.time()

    async def take_lease(self, value: bytes, seconds: float) -> None:
        """See `Link.take_lease`."""
        self._bus.set_lease(self._id, value, seconds)
        self._bus.streams[self._inbox]  # a defaultdict: there is one now

    async def renew_lease(self, value: bytes, seconds: float) -> bool:
        """See `Link.renew_lease`."""
        if not self._bus.alive(self._id):
            return False
        self._bus.set_lease(self._id, value, seconds)
        return True

    async def enlist(self) -> None:
        """See `Link.enlist`. Every process with a lease is listed."""

    async def leases(self, process_ids: Sequence[str] | None = None) -> dict[str, bytes]:
        """See `Link.leases`."""
        leases = self._bus.leases()
        return leases if process_ids is None else {one: leases[one] for one in process_ids if one in leases}

    async def close(self, goodbye: bool) -> None:
        """See `Link.close`."""
        if goodbye:
            self._bus.drop_lease(self._id)
            self._bus.streams.pop(self._inbox, None)


def _received(entry: Id, payload: bytes | None, deliveries: int = 1) -> Received:
    if payload is not None and len(payload) > MAX_ENTRY_BYTES:
        return Received(_text(entry), None, deliveries, len(payload))
    return Received(_text(entry), payload, deliveries)


def _number(entry: str) -> Id:
    first, _, second = entry.partition("-")
    return int(first), int(second or 0)


def _text(entry: Id) -> str:
    return f"{entry[0]}-{entry[1]}"
