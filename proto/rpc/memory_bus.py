"""The bus within one process: what Redis does for `RedisBus`, in as few lines as will do.

The reference that the contract tests hold the real bus against, and the bus of tests without Redis.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from proto.rpc.bus import Batch, Letter, Received

MANY_UNREAD = 4096


@dataclass(slots=True)
class Door:
    """A stream with its consumer group."""

    unread: "deque[Received]" = field(default_factory=deque)
    pending: dict[str, tuple[str, Received]] = field(default_factory=dict)
    """Entry id to (process, entry)."""
    processes: set[str] = field(default_factory=set)


class MemoryBus:
    """Connect any number of links of one event loop to it."""

    def __init__(self) -> None:
        self.doors: dict[str, Door] = {}
        self.inboxes: dict[str, deque[Received]] = {}
        self.dead_letters: list[Letter] = []
        self.leases: dict[str, tuple[bytes, float]] = {}
        self._count = 0
        self._news = asyncio.Event()

    async def connect(self, process_id: str) -> "MemoryLink":
        self.inboxes[process_id] = deque()
        return MemoryLink(self, process_id)

    def door(self, name: str) -> Door:
        return self.doors.setdefault(name, Door())

    def add(self, stream: str, payload: bytes | None) -> str:
        """Append to a stream; `None` is an entry that is not one of ours."""
        self._count += 1
        entry = Received(f"{self._count}-0", payload)
        if stream.startswith("inbox:"):
            inbox = self.inboxes.get(stream.removeprefix("inbox:"))
            if inbox is not None:
                inbox.append(entry)
        else:
            self.door(stream).unread.append(entry)
        self.tell()
        return entry.id

    def living(self, process_id: str) -> bytes | None:
        value, until = self.leases.get(process_id, (b"", 0.0))
        return value if time.monotonic() < until else None

    def tell(self) -> None:
        """Wake whoever waits for anything."""
        self._news.set()
        self._news = asyncio.Event()

    async def news(self) -> None:
        await self._news.wait()


class MemoryLink:
    """See `proto.rpc.bus.Link`."""

    def __init__(self, bus: MemoryBus, process_id: str) -> None:
        self._bus = bus
        self._id = process_id

    def post(self, batch: Batch) -> None:
        for stream, payload, added in batch.adds:
            number = self._bus.add(stream, payload)
            if added is not None:
                added(number)
        for name, entry in batch.acks:
            self._bus.door(name).pending.pop(entry, None)
        for name, entry in batch.deletes:
            door = self._bus.door(name)
            door.unread = deque(one for one in door.unread if one.id != entry)
        for letter in batch.letters:
            self._bus.dead_letters.append(letter)
            self._bus.tell()

    async def drained(self) -> None:
        while sum(map(len, self._bus.inboxes.values())) > MANY_UNREAD:
            await asyncio.sleep(0)

    async def inbox(self) -> AsyncIterator[Sequence[Received]]:
        while True:
            inbox = self._bus.inboxes.get(self._id)
            if inbox:
                entries = list(inbox)
                inbox.clear()
                yield entries
            else:
                await self._bus.news()

    async def join(self, door: str) -> None:
        self._bus.door(door).processes.add(self._id)

    async def take(self, door: str, count: int) -> Sequence[Received]:
        place = self._bus.door(door)
        while not place.unread:
            await self._bus.news()
        taken = [place.unread.popleft() for _ in range(min(count, len(place.unread)))]
        for entry in taken:
            place.pending[entry.id] = (self._id, entry)
        return taken

    async def orphans(self, door: str) -> Sequence[Received]:
        place = self._bus.door(door)
        dead = {one for one in place.processes if one != self._id and self._bus.living(one) is None}
        place.processes -= dead
        claimed = [entry for process, entry in place.pending.values() if process in dead]
        for entry in claimed:
            place.pending[entry.id] = (self._id, entry)
        return claimed

    async def trim(self, door: str) -> None:
        """What was taken is not kept here in the first place."""

    async def leave(self, door: str) -> None:
        self._bus.door(door).processes.discard(self._id)

    async def served(self, door: str) -> bool:
        return any(self._bus.living(one) is not None for one in self._bus.door(door).processes)

    async def hold(self, value: bytes, seconds: float, anew: bool) -> bool:
        if not anew and self._bus.living(self._id) is None:
            return False
        self._bus.leases[self._id] = (value, time.monotonic() + seconds)
        return True

    async def holders(self, ids: Sequence[str]) -> Sequence[bytes | None]:
        return [self._bus.living(one) for one in ids]

    async def all_holders(self) -> dict[str, bytes]:
        return {one: value for one in self._bus.leases if (value := self._bus.living(one)) is not None}

    async def close(self, gone: bool) -> None:
        if gone:
            self._bus.leases.pop(self._id, None)
            self._bus.inboxes.pop(self._id, None)
