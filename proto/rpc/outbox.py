"""What a process sends, gathered over a turn of its event loop.

Everything for one inbox becomes one entry, and all entries of a turn one pipeline: a step that produces
a token for 256 calls of one peer costs one XADD. One pipeline is under way at a time; what comes
meanwhile goes out together in the next one, so that a busy process sends fewer and larger pipelines.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from proto.rpc.bus import Batch, Letter, Link, Refused, inbox_of
from proto.rpc.errors import BusAway
from proto.rpc.seal import Seal
from proto.wire_pb2 import Entry, Frame, Kind

MAX_FRAMES = 1024
MAX_BYTES = 4 * 2**20
"""Frames, or bytes in them, that may wait to be sent before writers are asked to pause."""
MAX_ENTRY_FRAMES = 2**16
"""Frames of one entry. Each takes some 30 bytes besides its message."""
RETRY_SECONDS = 0.1
ANSWERING_TURNS = 3
"""Turns of the event loop within which what was read is usually answered, and the answer sent."""


async def answered() -> None:
    """Return when what was just read has probably been answered, and the answer sent.

    To be awaited before more is asked for, which takes a system call here and a moment of Redis, and before
    whatever else need not be done at once.
    """
    for _ in range(ANSWERING_TURNS):
        await asyncio.sleep(0)


class Opener(Protocol):
    """A call on its way to a door."""

    def departed(self) -> None:
        """The opening entry is complete: later frames must wait for ACCEPT."""

    def at_door(self, entry_id: str) -> None:
        """The opening entry is at the door. `entry_id` is empty if the id is not known."""

    def refused(self) -> None:
        """The bus will never take the opening entry."""

    def wanted(self) -> bool:
        """Whether somebody still waits for the call."""
        ...


class Outbox:
    """Takes frames at any time; `run` sends them."""

    def __init__(
        self, link: Link, process_id: str, away: Callable[[BusAway], None], seal: Seal | None = None
    ) -> None:
        """`away` is called each time that the bus cannot be reached."""
        self.epoch = 1
        self.full = False
        """Whether writers should wait for `room`."""
        self.buried = 0
        """Malformed entries so far."""
        self._link, self._id, self._away = link, process_id, away
        self._seal = seal or Seal()
        self._openings: dict[Opener, tuple[str, Entry]] = {}
        self._entries: dict[str, Entry] = {}
        self._settled: list[tuple[str, str]] = []
        self._letters: list[Letter] = []
        self._full: deque[dict[str, Entry]] = deque()
        self._frames = self._bytes = self._number = self._dropped = 0
        self._kept = 0, 0
        self._senders: list[asyncio.Future[None]] = []
        self._has_work = asyncio.Event()
        self._room = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def open(self, door: str, opener: Opener) -> Entry:
        """The entry that begins a call. Frames may be added to it until `opener` has departed."""
        entry = Entry(sender=self._id, epoch=self.epoch)
        self._openings[opener] = (door, entry)
        self._has_work.set()
        return entry

    def recall(self, opener: Opener) -> None:
        """Take back a call that has not departed."""
        del self._openings[opener]

    def request(self, process_id: str, call: int, seq: int, kind: Kind, body: bytes = b"") -> None:
        """A frame to the serving side."""
        _fill(self._entry(process_id, body).requests.add(), call, seq, kind, body)

    def response(self, process_id: str, call: int, seq: int, kind: Kind, body: bytes = b"") -> Frame:
        """A frame to the calling side; what else it carries may be filled in at once."""
        return _fill(self._entry(process_id, body).responses.add(), call, seq, kind, body)

    def settle(self, door: str, entry_id: str) -> None:
        """Settle a call at a door: it was accepted, refused or withdrawn."""
        self._settled.append((door, entry_id))
        self._has_work.set()

    def bury(self, letter: Letter) -> None:
        """Put a malformed entry where a person can look at it."""
        self.buried += 1
        self._letters.append(letter)
        self._has_work.set()

    def drop(self) -> None:
        """Forget all calls' frames, sent or not: they belong to an epoch that is over."""
        self._openings.clear()
        self._entries.clear()
        self._full.clear()
        self._settled.clear()
        self._dropped += 1

    async def room(self) -> None:
        """Return once there is room; call it when the outbox is `full`."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    async def sent(self) -> None:
        """Return once everything that waits now has been sent, or dropped."""
        waiting = asyncio.get_running_loop().create_future()
        self._senders.append(waiting)
        self._has_work.set()
        await waiting

    async def empty(self) -> None:
        """Return once everything has been sent."""
        while self._has_work.is_set() or not self._empty.is_set():
            await self._empty.wait()
            await asyncio.sleep(0)

    async def run(self) -> None:
        """Send, for ever."""
        while True:
            await self._has_work.wait()
            self._empty.clear()
            if self._settled:
                # A call was taken, whose handler may have woken others, as one that plans: they speak first.
                await asyncio.sleep(0)
            while self._has_work.is_set():
                await self._send()
            self._empty.set()

    async def _send(self) -> None:
        self._has_work.clear()
        openers, batch = self._collect()
        senders = []
        if not self._has_work.is_set():
            senders, self._senders = self._senders, []
        again, dropped = False, self._dropped
        while dropped == self._dropped:
            try:
                ids = await self._link.publish(batch, again)
            except BusAway as error:
                again = True
                self._away(error)
                batch = self._lightened(batch, error, [opener.wanted() for opener in openers])
                openers = [opener for opener in openers if opener.wanted()]
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for opener, entry_id in zip(openers, ids or [""] * len(openers), strict=True):
                if entry_id is None:
                    opener.refused()
                else:
                    opener.at_door(entry_id)
            break
        for waiting in senders:
            if not waiting.done():
                waiting.set_result(None)

    def _lightened(self, batch: Batch, error: BusAway, wanted: list[bool]) -> Batch:
        """A batch as it is published again: without calls that nobody wants, with what frees a full bus."""
        opens = list(itertools.compress(batch.opens, wanted))
        if not isinstance(error, Refused):
            return replace(batch, opens=opens)
        rest = replace(error.rest, opens=opens)
        if not self._settled:
            return rest
        # What frees a full bus waits for nothing, and each call leaves its door together with its ACCEPT.
        entries = [*rest.entries, *itertools.chain(*map(self._closed, (*self._full, self._entries)))]
        rest = replace(rest, entries=entries, settled=[*rest.settled, *self._settled])
        self._full.clear()
        self._entries, self._settled = {}, []
        self._kept = self._frames, self._bytes
        return rest

    def _collect(self) -> tuple[list[Opener], Batch]:
        """What goes out next: some `MAX_BYTES`, for a transaction needs room for all of it at once.

        If there is more, there is work again.
        """
        self._number += 1
        whole = not self._full
        entries = self._entries if whole else self._full.popleft()
        openers, opens = self._departing() if whole else ([], [])
        batch = Batch(
            number=self._number,
            opens=opens,
            entries=self._closed(entries),
            # Calls are settled with their ACCEPT or after it.
            settled=self._settled if whole else (),
            letters=self._letters if whole else (),
        )
        if whole:
            self._entries, self._settled, self._letters = {}, [], []
            self._frames = self._bytes = 0
            self._kept = 0, 0
            self.full = False
            self._room.set()
        if self._openings or not whole:
            self._has_work.set()
        return openers, batch

    def _closed(self, entries: dict[str, Entry]) -> list[tuple[str, bytes]]:
        """Entries by process, as they are written to the inboxes."""
        close = self._seal.close
        return [(to, close(inbox_of(to), entry.SerializeToString())) for to, entry in entries.items()]

    def _departing(self) -> tuple[list[Opener], list[tuple[str, bytes]]]:
        """The openings that go out next. The others can still be recalled."""
        openers, opens, size = list[Opener](), list[tuple[str, bytes]](), self._bytes - self._kept[1]
        for opener, (door, entry) in self._openings.items():
            size += entry.ByteSize()
            if opens and size > MAX_BYTES:
                break
            openers.append(opener)
            opens.append((door, self._seal.close(door, entry.SerializeToString())))
        for opener in openers:
            del self._openings[opener]
            opener.departed()
        return openers, opens

    def _entry(self, process_id: str, body: bytes) -> Entry:
        self._frames += 1
        self._bytes += len(body)
        if self._frames >= MAX_FRAMES or self._bytes >= MAX_BYTES:
            self.full = True
            self._divide(len(body))
        entry = self._entries.get(process_id)
        if entry is None:
            entry = self._entries[process_id] = Entry(sender=self._id, epoch=self.epoch)
            self._has_work.set()
        return entry

    def _divide(self, size: int) -> None:
        """Begin new entries before a message of `size` bytes, if those there are may be too large with it.

        Writers are asked to pause, but each of many may have one more message.
        """
        frames, taken = self._kept
        if self._bytes - taken >= MAX_BYTES or self._frames - frames >= MAX_ENTRY_FRAMES:
            self._full.append(self._entries)
            self._entries = {}
            self._kept = self._frames - 1, self._bytes - size


def _fill(frame: Frame, call: int, seq: int, kind: Kind, body: bytes) -> Frame:
    """Field by field: named arguments of `add` take half as long again, and this is done for every token."""
    frame.call, frame.seq, frame.kind, frame.body = call, seq, kind, body
    return frame
