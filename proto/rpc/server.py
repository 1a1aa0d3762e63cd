"""A server for generated servicers: takes calls at a service's front door, up to its capacity."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import grpc

from proto.rpc.bus import MAX_DELIVERIES, Letter, Link, Received, door_of, milliseconds_of
from proto.rpc.call import Status
from proto.rpc.errors import BusAway, MalformedEntry
from proto.rpc.frames import Metadata, decode_opening, from_pairs
from proto.rpc.outbox import RETRY_SECONDS, Outbox, answered
from proto.rpc.protocol import refusal, spoken
from proto.rpc.recent import Recent
from proto.rpc.resume import OUTSIDE, REFUSED_ATTEMPT, SUSPECT_ATTEMPT, attempt_of
from proto.rpc.seal import Seal
from proto.rpc.server_call import EXPIRED, ServerCall, SuspectCall
from proto.wire_pb2 import Entry

log = logging.getLogger(__name__)

REFUSED = Status(
    grpc.StatusCode.ABORTED,
    "this request was ended: one process after the other has died while serving it",
)
STOPPING = Status(grpc.StatusCode.UNAVAILABLE, "the server is stopping", ((OUTSIDE, "stopped"),))
UNIMPLEMENTED = Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


class Details(NamedTuple):
    """What a generic handler may look at: see `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: Metadata


class Presence(Protocol):
    """What a server needs of its node."""

    link: Link
    outbox: Outbox
    seal: Seal
    protocol: int
    serving: dict[tuple[str, int], ServerCall]

    @property
    def holds_lease(self) -> bool:
        """Whether the process's lease cannot have run out."""
        ...

    def own(self, work: Coroutine[Any, Any, None], name: str, may_end: bool = False) -> "asyncio.Task[None]":
        """Run a task that the process cannot do without: see `Owner`."""
        ...

    async def serve(self, server: "Server") -> None:
        """Publish the server's door in the lease until `retire`, and look after the server for as long as the
        process lives: calls may be given to it that it takes no more."""

    async def retire(self, server: "Server") -> None: ...

    def took(self, server: "Server", seconds: float) -> None:
        """A call has lain at a server's door for this time before it came here."""

    def current(self, sender: str, epoch: int) -> bool:
        """Whether a process's entry is of its newest epoch."""
        ...

    def away(self, error: BusAway) -> None:
        """The bus could not be reached."""


class Server:
    """The part of `grpc.aio.Server` that generated code needs. It serves one service, at one door."""

    def __init__(self, node: Presence, pool: str, capacity: int) -> None:
        self._node, self.pool, self._capacity = node, pool, capacity
        self.door = self.service = ""
        self._handlers: list[Any] = []
        self._calls: set[ServerCall] = set()
        self._suspect: SuspectCall | None = None
        """The suspect whose turn it is: it has made no progress here yet. See `resume.py`."""
        self._suspects: deque[SuspectCall] = deque()
        """Other suspects, which wait for their turn."""
        self._recent = Recent()
        self._seen = Recent()
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = asyncio.Event()
        self._stopping = False
        self._asked = 0
        self._taker: asyncio.Task[None] | None = None
        self._waker: asyncio.Task[None] | None = None
        self._adopter: asyncio.Task[None] | None = None

    @property
    def outbox(self) -> Outbox:
        return self._node.outbox

    # --- registration, as generated code of any version does it ---

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Sequence[Any]) -> None:
        """Raises `ValueError` for a second service: the capacity is that of one service."""
        for handler in generic_rpc_handlers:
            self._serve(handler.service_name())
            self._handlers.append(handler)

    def add_registered_method_handlers(
        self, service_name: str, method_handlers: Mapping[str, grpc.RpcMethodHandler]
    ) -> None:
        """Raises `ValueError` for a second service."""
        self._serve(service_name)
        self._handlers.append(grpc.method_handlers_generic_handler(service_name, method_handlers))

    def _serve(self, service: str) -> None:
        door = door_of(service, self.pool, self._node.protocol)
        if self.door not in ("", door):
            raise ValueError(f"this server serves {self.door}; make another one for {door}")
        self.door = door
        self.service = service.rpartition(".")[2]

    # --- life ---

    async def start(self) -> None:
        """Take calls from now on. Raises `BusAway`."""
        if not self.door:
            raise ValueError("no service was added to this server")
        await self._node.link.join(self.door)
        await self._node.serve(self)
        self._taker = self._own(self._take(), "takes calls")

    def _own(self, work: Coroutine[Any, Any, None], does: str) -> "asyncio.Task[None]":
        """`does`: what the task does at the door."""
        return self._node.own(work, f"what {does} at {self.door}", may_end=True)

    def set_capacity(self, capacity: int) -> None:
        """Hold at most this many calls at once; 0 takes no new ones. Accepted calls go on."""
        self._capacity = capacity
        if self._free > 0:
            self._room.set()
        if self._asked > max(self._free, 0):
            self._wake()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """Return True once it has stopped, False if that takes longer than `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._stopped.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self, grace: float | None) -> None:
        """Take no more calls. Calls that have not ended after `grace` seconds end with UNAVAILABLE."""
        if self._taker is None:
            self._stopped.set()
            return
        self._stopping = True
        self._room.set()
        await self._node.retire(self)
        self._wake()
        # A bus that is away gives no calls either.
        await asyncio.wait([self._taker], timeout=1.0)
        self._taker.cancel()
        self._asked = 0
        if grace and self._calls:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._idle.wait()
        for call in list(self._calls):
            call.end(STOPPING)
        await self._idle.wait()
        self._stopped.set()

    def abandon(self) -> None:
        """The process ends at once: take no more calls. Its calls are dropped by the node."""
        self._stopping = True
        if self._taker is not None:
            self._taker.cancel()

    @property
    def busy(self) -> bool:
        """Whether there are calls."""
        return bool(self._calls)

    # --- taking calls ---

    @property
    def _free(self) -> int:
        return self._capacity - len(self._calls)

    async def _take(self) -> None:
        while not self._stopping:
            if self._free <= 0 or not self._node.holds_lease:
                self._room.clear()
                await self._room.wait()
                continue
            self._asked = self._free
            try:
                entries = await self._node.link.take(self.door, self._asked)
            except BusAway as error:
                self._node.away(error)
                entries = ()
                await asyncio.sleep(RETRY_SECONDS)
            self._asked = 0
            # A process that was stopped and goes on gets calls before it notices that its lease has run out.
            # They stay pending: for itself once it has a lease again, or for another replica.
            if entries and self._node.holds_lease:
                await self._arrived(entries)
            await answered()

    async def _arrived(self, entries: Sequence[Received]) -> None:
        """Take in as many calls as there is room for, and give the others back."""
        spare = []
        for received in entries:
            if self._free > 0:
                self._receive(received)
            else:  # calls that were pending have come meanwhile
                spare.append(received.id)
        if spare:
            try:
                await self._node.link.give_back(self.door, spare)
            except BusAway as error:  # they stay pending until `tend`
                self._node.away(error)

    def _wake(self) -> None:
        """Interrupt a read that asks for more calls than are wanted now."""
        if self._waker is None or self._waker.done():
            self._waker = self._own(self._interrupt(), "interrupts reads")

    async def _interrupt(self) -> None:
        # More than once, as Redis may see this before it sees the read.
        while self._asked > max(self._free, 0) or (self._asked and self._stopping):
            try:
                await self._node.link.wake(self.door)
            except BusAway as error:
                self._node.away(error)
            await asyncio.sleep(0.005)

    async def tend(self, adopt: bool) -> None:
        """After each renewal of the lease: leave no call pending of which this process does not know.

        Takes the calls that were given to it and never reached it, as far as there is room, and gives the
        others back: nobody takes over what is pending for a process that lives. Then takes over calls that
        others gave back; with `adopt` also those of processes that are gone. Raises `BusAway`.
        """
        try:
            await self._review()
        finally:  # new calls do not depend on it
            if self._free > 0:
                self._room.set()
        if self._stopping or self._free <= 0:
            return
        if self._adopter is None or self._adopter.done():
            self._adopter = self._own(self._adopt(adopt), "takes calls over")

    async def _review(self) -> None:
        """Look at the calls that are pending for this process."""
        spare = []
        for received in await self._node.link.pending(self.door):
            if received.id in self._seen:
                # A Redis that came back without its last writes has forgotten that it was settled.
                self.outbox.settle(self.door, received.id)
            elif self._free > 0 and not self._stopping:
                self._receive(received)
            else:
                spare.append(received.id)
        if spare:
            await self._node.link.give_back(self.door, spare)

    async def _adopt(self, of_the_dead: bool) -> None:
        """Take over calls: the next one once the one before is settled.

        If reading one ends this process, too, it alone counts one process more, and not those behind it.
        """
        link = self._node.link
        try:
            while self._free > 0 and not self._stopping and self._node.holds_lease:
                received = await link.adopt(self.door, of_the_dead)
                if received is None or self._stopping or not self._node.holds_lease:
                    return
                await self._arrived((received,))
                await self.outbox.sent()
        except BusAway as error:
            self._node.away(error)

    def forget(self) -> None:
        """The process has fenced itself: calls that it had taken are pending again."""
        self._seen.clear()
        self._recent.clear()

    # --- calls ---

    def _receive(self, received: Received) -> None:
        """A call from the door: run it or refuse it."""
        self._seen.add(received.id)
        waited = max(0.0, self._node.link.clock() - milliseconds_of(received.id) / 1000)
        self._node.took(self, waited)
        try:
            self._open(received, waited)
        except Exception as error:  # whatever an entry holds, the server goes on with the next one
            letter = Letter.about(self.door, received, error)
            log.warning("%s %s: %s", letter.stream, letter.id, letter.reason)
            self.outbox.bury(letter)
        # Settled together with ACCEPT. Comes last, so that a quick handler responds in the same turn.
        self.outbox.settle(self.door, received.id)

    def _open(self, received: Received, waited: float) -> None:
        if received.deliveries > MAX_DELIVERIES:
            raise MalformedEntry(f"{received.deliveries - 1} processes ended before they had accepted it")
        entry = decode_opening(self._node.seal.open(self.door, received.content()))
        key = (entry.sender, entry.requests[0].call)
        twice = key in self._node.serving or key in self._recent
        if not twice and self._node.current(entry.sender, entry.epoch):
            self._begin(entry, waited)

    def _begin(self, entry: Entry, waited: float) -> None:
        opening = entry.requests[0]
        attempt = attempt_of(from_pairs(opening.metadata))
        kind = SuspectCall if attempt >= SUSPECT_ATTEMPT else ServerCall
        call = kind(self, entry.sender, entry.epoch, opening, waited)
        self._calls.add(call)
        if self._asked and self._free <= 0:
            self._wake()
        self._idle.clear()
        self._node.serving[call.client, call.number] = call
        theirs, own = spoken(opening.open.protocol), self._node.protocol
        if theirs != own:
            log.warning("%r speaks protocol %d, and is refused at %s", entry.sender[:100], theirs, self.door)
            call.refuse(refusal(theirs, own))
            return
        for frame in entry.requests:
            call.receive(frame)
        if call.done():
            self.released(call)
        elif call.time_remaining() == 0:
            call.refuse(EXPIRED)
        elif attempt >= REFUSED_ATTEMPT:
            call.refuse(REFUSED)
        elif (handler := self._handler(call)) is None:
            call.refuse(UNIMPLEMENTED)
        else:
            call.start(handler)
            if isinstance(call, SuspectCall):
                self._suspects.append(call)
                self._next_suspect()

    def _next_suspect(self) -> None:
        if self._suspects and self._suspect is None:
            self._suspect = self._suspects.popleft()
            self._suspect.turn.set()

    def _handler(self, call: ServerCall) -> Any:
        details = Details(call.method, call.invocation_metadata())
        found = (handler.service(details) for handler in self._handlers)
        return next((handler for handler in found if handler is not None), None)

    def ended(self, call: ServerCall) -> None:
        """See `Host`."""
        self._recent.add((call.client, call.number))
        self._node.serving.pop((call.client, call.number), None)

    def progressed(self, call: ServerCall) -> None:
        """See `Host`."""
        if call is self._suspect:
            self._suspect = None
            self._next_suspect()

    def released(self, call: ServerCall) -> None:
        """See `Host`."""
        self._calls.discard(call)
        if isinstance(call, SuspectCall):
            with contextlib.suppress(ValueError):
                self._suspects.remove(call)
            self.progressed(call)
        if self._free > 0:
            self._room.set()
        if not self._calls:
            self._idle.set()
