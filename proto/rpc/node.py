"""A process's presence on the bus: its lease, its inbox, its outbox, and the calls at both ends."""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Coroutine
from typing import Any, Self

import grpc

from proto.rpc.bus import START, Bus, Letter, Link, Received, inbox_of
from proto.rpc.call import Status
from proto.rpc.client import Channel
from proto.rpc.client_call import ClientCall
from proto.rpc.errors import BusAway, MalformedEntry
from proto.rpc.frames import decode
from proto.rpc.lease import Lease, LeaseKeeper
from proto.rpc.outbox import RETRY_SECONDS, Outbox
from proto.rpc.server import Server
from proto.rpc.server_call import ServerCall
from proto.rpc.watch import Watch
from proto.wire_pb2 import ACCEPT, CANCEL, Entry

log = logging.getLogger(__name__)

FENCED = Status(grpc.StatusCode.UNAVAILABLE, "this process lost its lease")
AWAY = Status(grpc.StatusCode.UNAVAILABLE, "Redis is away")
GOODBYE_SECONDS = 2.0
BREATHER = 512
"""Frames after which the inbox's reader gives the readers of calls a turn."""


class Node:
    """Entering it connects to the bus, leaving it ends the lease at once. Usually one per process."""

    link: Link
    outbox: Outbox

    def __init__(
        self, bus: Bus, service: str, info: dict[str, Any] | None = None, lease_seconds: float = 3.0
    ) -> None:
        self.id = f"{service}-{secrets.token_hex(4)}"
        self.service = service
        self.serving: dict[tuple[str, int], ServerCall] = {}
        """Calls that this process serves, by caller and number."""
        self._calling: dict[int, ClientCall] = {}
        self._numbers = itertools.count(1)
        self._bus, self._lease_seconds = bus, lease_seconds
        self._info = dict(info or {})
        self._servers: list[Server] = []
        self._epochs: dict[str, int] = {}
        self._served: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._read, self._trimmed = START, START
        self._fenced = False
        self._progress = asyncio.Event()

    @property
    def epoch(self) -> int:
        """1, and one more each time this process has lost its lease."""
        return self._keeper.epoch

    async def __aenter__(self) -> Self:
        """Connect and take the lease. Raises `BusAway`."""
        self.link = await self._bus.connect(self.id)
        self._keeper = LeaseKeeper(self.link, self.id, self.service, self._lease_seconds, self._fence)
        self._keeper.info = self._info
        self.outbox = Outbox(self.link, self.id, self.away)
        self._watch = Watch(self.link, self._lease_seconds, self._keeper, self)
        try:
            await self._keeper.take()
        except BusAway:
            await self.link.close(goodbye=False)
            raise
        for loop in (
            self.outbox.run(),
            self._read_inbox(),
            self._keeper.keep(self._trim, self._tidy),
            self._watch.run(),
        ):
            self._spawn(loop)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for server in list(self._servers):
            await server.stop(None)
        for call in list(self._calling.values()):
            call.cancel()
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self.outbox.empty()
        except TimeoutError:
            log.warning("ended with frames that were not sent: Redis is away")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.link.close(goodbye=True)

    def _spawn(self, loop: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(loop)
        task.add_done_callback(_report)
        self._tasks.append(task)

    # --- what a process uses ---

    def channel(self, pool: str = "") -> Channel:
        """A channel for generated stubs of any service; `pool` picks among its front doors."""
        return Channel(self, pool)

    def server(self, pool: str = "", capacity: int = 1000) -> Server:
        """A server for one generated servicer, which holds up to `capacity` calls at once."""
        return Server(self, pool, capacity)

    async def leases(self) -> list[Lease]:
        """Every process that lives, by id. Raises `BusAway`, too, if the bus is full."""
        if self._keeper.is_away:
            raise BusAway("Redis is away")
        values = await self.link.leases()
        leases = [Lease.decode(process_id, value) for process_id, value in sorted(values.items())]
        return [lease for lease in leases if lease is not None]

    async def update(self, **info: Any) -> None:
        """Change what the lease says of this process. Written at once, or when Redis is back."""
        self._info.update(info)
        await self._write_lease()

    async def _write_lease(self) -> None:
        try:
            await self._keeper.renew()
        except BusAway:
            log.warning("the lease will be written when Redis is back")

    # --- what servers use ---

    @property
    def holds_lease(self) -> bool:
        """See `Presence`."""
        return self._keeper.held

    async def serve(self, server: Server) -> None:
        """See `Presence`."""
        self._servers.append(server)
        self._keeper.doors.append(server.door)
        await self._write_lease()

    async def retire(self, server: Server) -> None:
        """See `Presence`."""
        if server in self._servers:
            self._servers.remove(server)
            self._keeper.doors.remove(server.door)
            await self._write_lease()

    def current(self, sender: str, epoch: int) -> bool:
        """Whether an entry is of its sender's newest epoch. A newer one than known ends the older calls."""
        known = self._epochs.get(sender)
        if known == epoch:
            return True
        if known is not None and epoch < known:
            return False
        self._epochs[sender] = epoch
        if known is not None:
            self.peer_is(sender, epoch)
        self._watch.want()
        return True

    def away(self, error: BusAway) -> None:
        """The bus could not be reached."""
        self._keeper.away(error)

    # --- what client calls use ---

    def begin(self, call: ClientCall) -> int:
        """See `Calls`."""
        number = next(self._numbers)
        self._calling[number] = call
        if call.wait_for_ready:
            self._watch.want()
        elif self._keeper.is_away:
            asyncio.get_running_loop().call_soon(call.end, AWAY)
        elif self._served.get(call.door, 0.0) < asyncio.get_running_loop().time():
            self._watch.hurry()
        else:
            self._watch.want()
        return number

    def ended(self, call: ClientCall) -> None:
        """See `Calls`."""
        self._calling.pop(call.number, None)

    # --- the inbox ---

    async def _read_inbox(self) -> None:
        while True:
            try:
                entries = await self.link.read(self._read)
            except BusAway as error:
                self.away(error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            frames = 0
            for received in entries:
                frames += self._receive(received)
                self._read = received.id
                if frames >= BREATHER:
                    frames = 0
                    await asyncio.sleep(0)
            self._progress.set()

    def _receive(self, received: Received) -> int:
        try:
            entry = decode(received.payload)
        except MalformedEntry as error:
            stream = inbox_of(self.id)
            log.warning("%s %s: %s", stream, received.id, error)
            self.outbox.bury(Letter(stream, received.id, str(error), received.payload or b""))
            return 1
        if self.current(entry.sender, entry.epoch):
            self._dispatch(entry)
        return len(entry.responses) + len(entry.requests)

    def _dispatch(self, entry: Entry) -> None:
        sender, epoch = entry.sender, entry.epoch
        calling, serving = self._calling, self.serving
        for frame in entry.responses[:]:  # as a list, which is sooner gone through
            call = calling.get(frame.call)
            if call is not None:
                call.receive(sender, epoch, frame)
            elif frame.kind == ACCEPT:
                # It was cancelled before a server had accepted it, and too late to withdraw it from the door.
                self.outbox.request(sender, frame.call, 0, CANCEL)
        for frame in entry.requests:
            served = serving.get((sender, frame.call))
            if served is not None and served.client_epoch == epoch:
                served.receive(frame)

    async def caught_up(self) -> None:
        """See `Watched`."""
        tail = _number(await self.link.tail())
        while _number(self._read) < tail:
            self._progress.clear()
            await self._progress.wait()

    # --- life and death ---

    def peers(self) -> set[str]:
        """See `Watched`."""
        servers = {call.server for call in self._calling.values() if call.server is not None}
        peers = servers | {caller for caller, _ in self.serving}
        self._epochs = {one: epoch for one, epoch in self._epochs.items() if one in peers}
        return peers - {self.id}

    def impatient(self) -> bool:
        """See `Watched`."""
        return any(call.server is None and not call.wait_for_ready for call in self._calling.values())

    def peer_is(self, process_id: str, epoch: int | None) -> None:
        """See `Watched`."""
        for call in list(self._calling.values()):
            if call.server == process_id and call.server_epoch != epoch:
                call.lost()
        for served in list(self.serving.values()):
            if served.client == process_id and served.client_epoch != epoch:
                served.drop()

    def served(self, doors: set[str]) -> None:
        """See `Watched`."""
        until = asyncio.get_running_loop().time() + self._lease_seconds
        self._served = dict.fromkeys(doors, until)
        for call in list(self._calling.values()):
            if call.server is None and not call.wait_for_ready and call.door not in doors:
                call.end(Status(grpc.StatusCode.UNAVAILABLE, f"no process serves {call.door}"))

    def _fence(self) -> None:
        """Drop all calls: the peers have given them up, or do so when they see the new epoch."""
        self._fenced = True
        for call in list(self._calling.values()):
            call.drop(FENCED)
        for served in list(self.serving.values()):
            served.drop()
        for server in self._servers:
            server.forget()
        self.outbox.drop()
        self.outbox.epoch += 1

    async def _trim(self) -> None:
        """Drop what was read, whether or not the lease can be renewed: a full bus needs the room."""
        if self._read != self._trimmed:
            upto = self._read
            await self.link.trim(upto)
            self._trimmed = upto

    async def _tidy(self) -> None:
        """After each renewal: look after the doors."""
        if self._fenced:
            # The inbox may be a new one, of a Redis that lost its data and whose clock is behind.
            if _number(await self.link.tail()) < _number(self._read):
                self._read = self._trimmed = START
            self._fenced = False
        for server in list(self._servers):
            await server.tend(adopt=self._keeper.trustworthy)


def _number(entry_id: str) -> tuple[int, int]:
    first, _, second = entry_id.partition("-")
    return int(first), int(second or 0)


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a task of the transport has failed", exc_info=error)
