"""A server for generated servicers: takes calls at a service's front door, up to its capacity."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import grpc

from proto.rpc.bus import Letter, Link, Received, door_of
from proto.rpc.call import Status
from proto.rpc.errors import BusAway, MalformedEntry
from proto.rpc.frames import Metadata, decode_opening
from proto.rpc.outbox import RETRY_SECONDS, Outbox
from proto.rpc.recent import Recent
from proto.rpc.resume import REFUSED_ATTEMPT, attempt_of
from proto.rpc.server_call import EXPIRED, ServerCall
from proto.wire_pb2 import Entry

log = logging.getLogger(__name__)

REFUSED = Status(grpc.StatusCode.ABORTED, "this call has cost two servers their lives")
STOPPING = Status(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
UNIMPLEMENTED = Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


class Details(NamedTuple):
    """What a generic handler may look at: see `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: Metadata


class Presence(Protocol):
    """What a server needs of its node."""

    link: Link
    outbox: Outbox
    serving: dict[tuple[str, int], ServerCall]

    @property
    def holds_lease(self) -> bool:
        """Whether the process's lease cannot have run out."""
        ...

    async def serve(self, server: "Server") -> None:
        """Publish the server's door in the lease, and look after the server until `retire`."""

    async def retire(self, server: "Server") -> None: ...

    def current(self, sender: str, epoch: int) -> bool:
        """Whether a process's entry is of its newest epoch."""
        ...

    def away(self, error: BusAway) -> None:
        """The bus could not be reached."""


class Server:
    """The part of `grpc.aio.Server` that generated code needs. It serves one service, at one door."""

    def __init__(self, node: Presence, pool: str, capacity: int) -> None:
        self._node, self._pool, self._capacity = node, pool, capacity
        self.door = ""
        self._handlers: list[Any] = []
        self._calls: set[ServerCall] = set()
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
        door = door_of(service, self._pool)
        if self.door not in ("", door):
            raise ValueError(f"this server serves {self.door}; make another one for {door}")
        self.door = door

    # --- life ---

    async def start(self) -> None:
        """Take calls from now on. Raises `BusAway`."""
        if not self.door:
            raise ValueError("no service was added to this server")
        await self._node.link.join(self.door)
        await self._node.serve(self)
        self._taker = asyncio.ensure_future(self._take())

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
        if grace and self._calls:
            await asyncio.wait([asyncio.ensure_future(self._idle.wait())], timeout=grace)
        for call in list(self._calls):
            call.end(STOPPING)
        await self._idle.wait()
        self._stopped.set()

    # --- taking calls ---

    @property
    def _free(self) -> int:
        return self._capacity - len(self._calls)

    async def _take(self) -> None:
        while not self._stopping:
            if self._free <= 0:
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
            if self._node.holds_lease:
                for received in entries:
                    self._receive(received)
            # First responses of these calls go out before more calls are taken.
            await asyncio.sleep(0)

    def _wake(self) -> None:
        """Interrupt a read that asks for more calls than are wanted now."""
        if self._waker is None or self._waker.done():
            self._waker = asyncio.ensure_future(self._interrupt())

    async def _interrupt(self) -> None:
        # More than once, as Redis may see this before it sees the read.
        while self._asked > max(self._free, 0) or (self._asked and self._stopping):
            try:
                await self._node.link.wake(self.door)
            except BusAway as error:
                self._node.away(error)
            await asyncio.sleep(0.005)

    async def tend(self, adopt: bool) -> None:
        """Take the calls that were given to this process and never reached it; with `adopt` also the calls
        of processes that are gone. Raises `BusAway`."""
        if self._free > 0 and not self._stopping:
            for received in await self._node.link.pending(self.door, adopt):
                if self._free > 0 and received.id not in self._seen:
                    self._receive(received)

    def forget(self) -> None:
        """The process has fenced itself: calls that it had taken are pending again."""
        self._seen.clear()
        self._recent.clear()

    # --- calls ---

    def _receive(self, received: Received) -> None:
        """A call from the door: run it or refuse it."""
        self._seen.add(received.id)
        try:
            entry = decode_opening(received.payload)
        except MalformedEntry as error:
            log.warning("%s %s: %s", self.door, received.id, error)
            self.outbox.bury(Letter(self.door, received.id, str(error), received.payload or b""))
        else:
            key = (entry.sender, entry.requests[0].call)
            twice = key in self._node.serving or key in self._recent
            if not twice and self._node.current(entry.sender, entry.epoch):
                self._begin(entry)
        # Settled together with ACCEPT. Comes last, so that a quick handler responds in the same turn.
        self.outbox.settle(self.door, received.id)

    def _begin(self, entry: Entry) -> None:
        call = ServerCall(self, entry.sender, entry.epoch, entry.requests[0])
        self._calls.add(call)
        self._idle.clear()
        self._node.serving[call.client, call.number] = call
        for frame in entry.requests:
            call.receive(frame)
        if call.done():
            self.released(call)
        elif call.time_remaining() == 0:
            call.refuse(EXPIRED)
        elif attempt_of(call.invocation_metadata()) >= REFUSED_ATTEMPT:
            call.refuse(REFUSED)
        elif (handler := self._handler(call)) is None:
            call.refuse(UNIMPLEMENTED)
        else:
            call.start(handler)

    def _handler(self, call: ServerCall) -> Any:
        details = Details(call.method, call.invocation_metadata())
        found = (handler.service(details) for handler in self._handlers)
        return next((handler for handler in found if handler is not None), None)

    def ended(self, call: ServerCall) -> None:
        """See `Owner`."""
        self._recent.add((call.client, call.number))
        self._node.serving.pop((call.client, call.number), None)

    def released(self, call: ServerCall) -> None:
        """See `Owner`."""
        self._calls.discard(call)
        if self._free > 0:
            self._room.set()
        if not self._calls:
            self._idle.set()
