"""A process's presence on the bus: its lease, its inbox, what it says, and the calls at both ends."""

import asyncio
import itertools
import logging
import secrets
import weakref
from collections.abc import Sequence
from typing import Any, Self

from proto.rpc.bus import Bus, Letter, Link, Received
from proto.rpc.client import Channel
from proto.rpc.client_call import ClientCall
from proto.rpc.errors import BusAway, MalformedEntry
from proto.rpc.frames import decode
from proto.rpc.lease import Lease, LeaseKeeper, Watcher
from proto.rpc.outbox import Outbox
from proto.rpc.server import Server
from proto.rpc.server_call import ServerCall
from proto.wire_pb2 import Entry, Frame, Kind

log = logging.getLogger(__name__)


class Node:
    """Enter it to be on the bus, and leave it to be gone at once. One per process, as a rule."""

    link: Link
    outbox: Outbox

    def __init__(
        self, bus: Bus, service: str, info: dict[str, Any] | None = None, lease_seconds: float = 3.0
    ) -> None:
        self.id = f"{service}-{secrets.token_hex(4)}"
        self.service = service
        self._bus = bus
        self._info = dict(info or {})
        self._lease_seconds = lease_seconds
        self._numbers = itertools.count(1)
        self._client_calls: weakref.WeakValueDictionary[int, ClientCall] = weakref.WeakValueDictionary()
        self._server_calls: dict[tuple[str, int], ServerCall] = {}
        self._servers: list[Server] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last_read = ""
        self._trimmed = ""

    @property
    def epoch(self) -> int:
        """How often this process has taken its lease."""
        return self.outbox.epoch

    async def __aenter__(self) -> Self:
        """Connect and take the lease. Raises `BusAway`."""
        self.link = await self._bus.connect(self.id)
        self.outbox = Outbox(self.link, self.id)
        self._keeper = LeaseKeeper(self.link, self.id, self.service, self._lease_seconds, self._fence)
        self._keeper.info = self._info
        self._watcher = Watcher(self.link, self._lease_seconds, self._peer_lives)
        await self._keeper.acquire()
        self._spawn(self._read_inbox())
        self._spawn(self._keeper.keep(self._tidy))
        self._spawn(self._watcher.watch(self._peers))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for server in list(self._servers):
            await server.stop(None)
        for call in list(self._client_calls.values()):
            call.cancel()
        self.outbox.flush()
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.link.close(gone=True)

    # --- what a process uses ---

    def channel(self, pool: str = "") -> Any:
        """A channel for generated stubs of any service; `pool` picks among its front doors."""
        return Channel(self, pool)

    def server(self, pool: str = "", capacity: int = 1000) -> Server:
        """A server for generated servicers that holds up to `capacity` calls at once."""
        return Server(self, pool, capacity)

    async def leases(self) -> list[Lease]:
        """Every process that lives, by id. Raises `BusAway`."""
        holders = await self.link.all_holders()
        leases = [Lease.decode(one, value) for one, value in sorted(holders.items())]
        return [lease for lease in leases if lease is not None]

    async def update(self, **info: Any) -> None:
        """Change what the lease says of this process; it is written at once, or when the bus is back."""
        self._info.update(info)
        try:
            await self._keeper.renew()
        except BusAway:
            log.warning("the lease will tell of %s once Redis is back", info)

    # --- what calls use ---

    def next_call_number(self) -> int:
        return next(self._numbers)

    async def turn(self) -> None:
        """Let others run; longer if the bus does not keep up."""
        await asyncio.sleep(0)
        await self.link.drained()

    def watch(self) -> None:
        self._watcher.wake()

    def add_client_call(self, call: ClientCall) -> None:
        self._client_calls[call.number] = call

    def remove_client_call(self, call: ClientCall) -> None:
        self._client_calls.pop(call.number, None)

    def end_after(self, seconds: float, call: ClientCall) -> asyncio.TimerHandle:
        """End the call by its deadline, unless it has ended or been forgotten by then."""
        reference = weakref.ref(call)

        def expire() -> None:
            if (waiting := reference()) is not None:
                waiting.expire()

        return asyncio.get_running_loop().call_later(seconds, expire)

    def ensure_served(self, call: ClientCall, door: str) -> None:
        """End the call if nobody serves its door. It is under way meanwhile, as somebody mostly does."""
        reference = weakref.ref(call)

        async def check() -> None:
            try:
                served = await self.link.served(door)
            except BusAway:
                served = False
            if not served and (waiting := reference()) is not None:
                waiting.not_served()

        self._spawn(check())

    def cancel_at(self, server: str, number: int, sequence: int) -> None:
        """Cancel a call at a server that has it in vain."""
        frame = Frame(call=number, from_client=True, sequence=sequence, kind=Kind.CANCEL)
        self.outbox.to_peer(server, frame)

    def add_server(self, server: Server) -> None:
        self._servers.append(server)
        for door in server.doors:
            self._spawn(self._adopt(server, door))

    def remove_server(self, server: Server) -> None:
        if server in self._servers:
            self._servers.remove(server)

    def add_server_call(self, call: ServerCall) -> None:
        self._server_calls[call.client, call.number] = call
        self._watcher.wake()

    def remove_server_call(self, call: ServerCall) -> None:
        self._server_calls.pop((call.client, call.number), None)

    def has_server_call(self, client: str, number: int) -> bool:
        return (client, number) in self._server_calls

    def bury(self, stream: str, received: Received, reason: str) -> None:
        """A malformed entry is put aside, with its reason."""
        log.warning("%s %s: %s", stream, received.id, reason)
        self.outbox.bury(Letter(stream, received.id, reason, received.payload or b""))

    # --- inbox ---

    async def _read_inbox(self) -> None:
        async for entries in self.link.inbox():
            for received in entries:
                try:
                    self._dispatch(decode(received.payload))
                except MalformedEntry as error:
                    self.bury(f"inbox:{self.id}", received, str(error))
            self._last_read = entries[-1].id

    def _dispatch(self, entry: Entry) -> None:
        calls, server_calls, sender = self._client_calls, self._server_calls, entry.sender
        for frame in entry.frames:
            if frame.from_client:
                server_call = server_calls.get((sender, frame.call))
                if server_call is not None:
                    server_call.receive(entry, frame)
            else:
                call = calls.get(frame.call)
                if call is not None:
                    call.receive(entry, frame)
                elif frame.kind == Kind.ACCEPT:
                    self.cancel_at(sender, frame.call, 1)

    # --- life and death ---

    def _peers(self) -> Sequence[str]:
        servers = {call.server for call in list(self._client_calls.values()) if call.server is not None}
        clients = {call.client for call in self._server_calls.values()}
        return sorted((servers | clients) - {self.id})

    def _peer_lives(self, process_id: str, epoch: int | None) -> None:
        for client_call in list(self._client_calls.values()):
            client_call.server_lives(process_id, epoch)
        for server_call in list(self._server_calls.values()):
            server_call.client_lives(process_id, epoch)

    def _fence(self) -> None:
        """Drop all calls: the peers have given them up, or will when they see the new epoch."""
        self.outbox.drop()
        for call in list(self._client_calls.values()):
            call.lost("this process lost its lease")
        for server_call in list(self._server_calls.values()):
            server_call.drop()
        self.outbox.drop()
        self.outbox.epoch += 1

    def _tidy(self) -> None:
        """From time to time: drop what was read, and look after the doors."""
        if self._last_read and self._last_read != self._trimmed:
            self._trimmed = self._last_read
            self.outbox.trim(f"inbox:{self.id}", self._last_read)
        for server in self._servers:
            for door in server.doors:
                self._spawn(self._adopt(server, door))

    async def _adopt(self, server: Server, door: str) -> None:
        """Take over the calls that others took and died with, and trim the door."""
        try:
            for received in await self.link.orphans(door):
                server.receive(door, received)
            await self.link.trim(door)
        except BusAway:
            return  # next time

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the transport failed", exc_info=error)
