"""A process's presence on the bus: its lease, its inbox, its outbox, and the calls at both ends."""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, Self

import grpc

from proto.rpc.bus import START, Bus, DoorState, Letter, Link, Received, inbox_of
from proto.rpc.call import Status
from proto.rpc.client import Channel
from proto.rpc.client_call import ClientCall
from proto.rpc.errors import BusAway
from proto.rpc.frames import decode
from proto.rpc.lease import Lease, LeaseKeeper, LeaseReader
from proto.rpc.outbox import RETRY_SECONDS, Outbox, answered
from proto.rpc.owner import Owner
from proto.rpc.probe import probe
from proto.rpc.protocol import PROTOCOL
from proto.rpc.recent import Recent
from proto.rpc.resume import OUTSIDE
from proto.rpc.seal import Seal
from proto.rpc.server import Server
from proto.rpc.server_call import ServerCall
from proto.rpc.watch import Watch
from proto.wire_pb2 import ACCEPT, CANCEL, GONE, PROBE, Entry

log = logging.getLogger(__name__)

FENCED = Status(grpc.StatusCode.UNAVAILABLE, "this process lost its lease", ((OUTSIDE, "silent"),))
BROKEN = Status(grpc.StatusCode.UNAVAILABLE, "this process has failed")
AWAY = Status(grpc.StatusCode.UNAVAILABLE, "Redis is away")
GOODBYE_SECONDS = 2.0
BREATHER = 512
"""Frames after which the inbox's reader gives the readers of calls a turn."""


class Node:
    """Entering it connects to the bus, leaving it ends the lease at once. Usually one per process."""

    link: Link
    outbox: Outbox

    def __init__(
        self,
        bus: Bus,
        service: str,
        info: dict[str, Any] | None = None,
        lease_seconds: float = 3.0,
        quiet_seconds: float = 5.0,
        secret: bytes = b"",
        protocol: int = PROTOCOL,
    ) -> None:
        """`quiet_seconds`: after this time without a frame of a call the other end is asked about it.
        `secret`: what all processes of the deployment have, and nobody else; empty for none.
        `protocol`: the version that this process speaks; tests have others."""
        self.id = f"{service}-{secrets.token_hex(4)}"
        self.service = service
        self._inbox = inbox_of(self.id)
        self.serving: dict[tuple[str, int], ServerCall] = {}
        """Calls that this process serves, by caller and number."""
        self._calling: dict[int, ClientCall] = {}
        self._numbers = itertools.count(1)
        self._bus, self._lease_seconds, self._quiet_seconds = bus, lease_seconds, quiet_seconds
        self.seal = Seal(secret)
        self.protocol = protocol
        self._info = dict(info or {})
        self._servers: list[Server] = []
        self._epochs: dict[str, int] = {}
        self._served: dict[str, float] = {}
        self._read, self._trimmed = START, START
        self._fenced = False
        self._leases = LeaseReader()
        self._foreign = Recent()
        self._progress = asyncio.Event()
        self._empty_reads = 0
        """Reads of the inbox that have found nothing."""
        self.measure_wait: Callable[[Server, float], None] = _not_measured
        """Is called with each call that comes to a server, and the seconds that it lay at the door."""

    @property
    def epoch(self) -> int:
        """1, and one more each time this process has lost its lease."""
        return self._keeper.epoch

    async def __aenter__(self) -> Self:
        """Connect and take the lease. Raises `BusAway`."""
        self.link = await self._bus.connect(self.id)
        self._keeper = LeaseKeeper(
            self.link, self.id, self.service, self._lease_seconds, self._fence, self.protocol
        )
        self._keeper.info = self._info
        self.outbox = Outbox(self.link, self.id, self.away, self.seal)
        seconds = self._lease_seconds, self._quiet_seconds
        self._watch = Watch(self.link, seconds, self._keeper, self)
        try:
            await self._keeper.take()
        except BusAway:
            await self.link.close(goodbye=False)
            raise
        self._owner = Owner(self._broken)
        self.own(self.outbox.run(), "what sends frames")
        self.own(self._read_inbox(), "what reads the inbox")
        self.own(self._keeper.keep(self._trim, self._tidy), "what keeps the lease")
        self.own(self._watch.run(), "what watches over the peers")
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
        await self._owner.close()
        await self.link.close(goodbye=True)

    async def failed(self) -> NoReturn:
        """Wait until a task of the transport has ended unasked, or `fail`. Raises the error: the process must
        end."""
        await self._owner.ended()

    def fail(self, error: BaseException) -> None:
        """Something has failed in the middle of its work: the process must end.

        From now on nothing is sent for the calls that it serves. Their callers learn that it died.
        """
        self._owner.end(error)

    def _broken(self, error: BaseException) -> None:
        """Let nobody in this process wait for calls that will never go on."""
        self._keeper.end()
        for server in self._servers:
            server.abandon()
        for call in list(self._calling.values()):
            call.drop(BROKEN)
        for served in list(self.serving.values()):
            served.drop()

    # --- what a process uses ---

    def channel(self, pool: str = "") -> Channel:
        """A channel for generated stubs of any service; `pool` picks among its front doors."""
        return Channel(self, pool)

    def server(self, pool: str = "", capacity: int = 1000) -> Server:
        """A server for one generated servicer, which holds up to `capacity` calls at once."""
        return Server(self, pool, capacity)

    async def leases(self, any_protocol: bool = False) -> list[Lease]:
        """Every process that lives and speaks this one's protocol, or any, by id.

        Raises `BusAway`, too, if the bus is full.
        """
        if self._keeper.is_away:
            raise BusAway("Redis is away")
        leases = [lease for _, lease in sorted(self._leases.read(await self.link.leases()).items())]
        for lease in leases:
            theirs = lease.protocol
            if theirs != self.protocol and theirs not in self._foreign:
                self._foreign.add(theirs)
                what = "%r speaks protocol %d, this process %d: no call goes from one to the other"
                log.warning(what, lease.process_id[:100], theirs, self.protocol)
        return [lease for lease in leases if any_protocol or lease.protocol == self.protocol]

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

    def own(self, work: Coroutine[Any, Any, None], name: str, may_end: bool = False) -> "asyncio.Task[None]":
        """See `Presence`."""
        return self._owner.own(work, name, may_end)

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
        if server.door in self._keeper.doors:
            self._keeper.doors.remove(server.door)
            await self._write_lease()

    def took(self, server: Server, seconds: float) -> None:
        """See `Presence`."""
        self.measure_wait(server, seconds)

    async def look(self) -> list[tuple[Server, DoorState]]:
        """What lies at the doors of this process's servers. Raises `BusAway`."""
        return [(server, await self.link.look(server.door)) for server in list(self._servers)]

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
            self._empty_reads += not entries
            for received in entries:
                frames += self._receive(received)
                self._read = received.id
                if frames >= BREATHER:
                    frames = 0
                    await asyncio.sleep(0)
            self._progress.set()
            if len(entries) == 1:  # else there are probably more
                await answered()

    def _receive(self, received: Received) -> int:
        try:
            entry = decode(self.seal.open(self._inbox, received.content()))
            if self.current(entry.sender, entry.epoch):
                self._dispatch(entry)
        except Exception as error:  # whatever an entry holds, the reader goes on with the next one
            letter = Letter.about(self._inbox, received, error)
            log.warning("%s %s: %s", letter.stream, letter.id, letter.reason)
            self.outbox.bury(letter)
            return 1
        return len(entry.responses) + len(entry.requests)

    def _dispatch(self, entry: Entry) -> None:
        sender, epoch = entry.sender, entry.epoch
        calling, serving = self._calling, self.serving
        for frame in entry.responses[:]:  # as a list, which is sooner gone through
            call = calling.get(frame.call)
            if call is not None:
                try:
                    call.receive(sender, epoch, frame)
                except Exception as error:  # the frames behind it are of other calls
                    call.end(_unread(error))
            elif frame.kind in (ACCEPT, PROBE):
                # It was cancelled before a server had accepted it, and too late to withdraw it from the door.
                # Or CANCEL was lost.
                self.outbox.request(sender, frame.call, 0, CANCEL)
        for frame in entry.requests:
            served = serving.get((sender, frame.call))
            if served is not None and served.client_epoch == epoch:
                try:
                    served.receive(frame)
                except Exception as error:
                    served.end(_unread(error))
            elif served is None and frame.kind == PROBE:
                self.outbox.response(sender, frame.call, 0, GONE)

    async def caught_up(self) -> None:
        """See `Watched`."""
        tail = _number(await self.link.tail())
        # The newest entry may be deleted before it is read. The second read has begun after `tail`.
        empty = self._empty_reads + 2
        while _number(self._read) < tail and self._empty_reads < empty:
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

    def waiting(self) -> bool:
        """See `Watched`."""
        return any(call.server is None for call in self._calling.values())

    async def probe(self) -> None:
        """See `Watched`."""
        await probe(self.link, self._calling.values(), self.serving.values(), self.caught_up)

    def peer_is(self, process_id: str, epoch: int | None, killed: bool = False) -> None:
        """See `Watched`."""
        # One that has another epoch lives: it was silent for longer than its lease.
        outside = "killed" if killed else "silent" if epoch is not None else ""
        for call in list(self._calling.values()):
            if call.server == process_id and (epoch is None or call.server_epoch < epoch):
                call.lost(outside)
        for served in list(self.serving.values()):
            if served.client == process_id and (epoch is None or served.client_epoch < epoch):
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


def _not_measured(_: Server, __: float) -> None:
    """Nobody wants to know how long calls wait."""


def _unread(error: Exception) -> Status:
    """The status of a call of which a frame cannot be taken in."""
    log.warning("a frame could not be taken in", exc_info=error)
    return Status(grpc.StatusCode.INTERNAL, f"a frame could not be taken in: {type(error).__name__}")


def _number(entry_id: str) -> tuple[int, int]:
    first, _, second = entry_id.partition("-")
    return int(first), int(second or 0)
