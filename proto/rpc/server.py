"""A server for generated servicers: takes calls at the front doors of its services."""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from proto.rpc.bus import WITHDRAWN, Received
from proto.rpc.client import door_of
from proto.rpc.errors import BusAway, MalformedEntry
from proto.rpc.frames import Metadata, decode, metadata_from
from proto.rpc.resume import REFUSED_ATTEMPT, attempt_of
from proto.rpc.server_call import ServerCall
from proto.wire_pb2 import Frame, Kind

if TYPE_CHECKING:
    from proto.rpc.node import Node

log = logging.getLogger(__name__)

REMEMBERED = 4096
"""Calls that have ended and are still known, should their opening come a second time."""


class Details(NamedTuple):
    """What a generic handler may look at; see `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: Metadata


class Server:
    """Has what generated code needs of `grpc.aio.Server`."""

    def __init__(self, node: "Node", pool: str, capacity: int) -> None:
        self._node, self._pool, self._capacity = node, pool, capacity
        self._generic: list[Any] = []
        self._registered: dict[str, Any] = {}
        self._services: set[str] = set()
        self._calls: set[ServerCall] = set()
        self._ended_calls: set[tuple[str, int]] = set()
        self._ended_order: deque[tuple[str, int]] = deque()
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._takers: dict[str, asyncio.Task[None]] = {}
        self._taking: set[asyncio.Future[Any]] = set()
        self._stopped = asyncio.Event()

    # --- registration, as generated code does it ---

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        for handler in handlers:
            if not hasattr(handler, "service_name"):
                raise ValueError("a handler must name its service: that is where its front door is")
            self._services.add(handler.service_name())
        self._generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        self._services.add(service)
        self._registered |= {f"/{service}/{method}": handler for method, handler in handlers.items()}

    # --- life ---

    @property
    def doors(self) -> list[str]:
        return sorted(door_of(service, self._pool) for service in self._services)

    async def start(self) -> None:
        """Take calls from now on. Raises `BusAway`."""
        for door in self.doors:
            await self._node.link.join(door)
            self._takers[door] = asyncio.ensure_future(self._take(door))
        self._node.add_server(self)

    def set_capacity(self, capacity: int) -> None:
        """How many calls are held at once; 0 takes none."""
        self._capacity = capacity
        if self._free > 0:
            self._room.set()
        else:
            for taking in self._taking:
                taking.cancel()

    async def wait_for_termination(self) -> None:
        await self._stopped.wait()

    async def stop(self, grace: float | None) -> None:
        """Take no more calls; those that have not ended after `grace` seconds are to be resumed elsewhere."""
        takers, self._takers = self._takers, {}
        for taker in takers.values():
            taker.cancel()
        await asyncio.gather(*takers.values(), return_exceptions=True)
        if grace:
            try:
                async with asyncio.timeout(grace):
                    await self._idle.wait()
            except TimeoutError:
                pass
        for call in list(self._calls):
            call.end(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        for door in takers:
            try:
                await self._node.link.leave(door)
            except BusAway:
                break  # the door forgets us when the lease has run out
        self._node.remove_server(self)
        self._stopped.set()

    # --- calls ---

    @property
    def _free(self) -> int:
        return self._capacity - len(self._calls)

    async def _take(self, door: str) -> None:
        while True:
            while (free := self._free) <= 0:
                self._room.clear()
                await self._room.wait()
            taking = asyncio.ensure_future(self._node.link.take(door, free))
            self._taking.add(taking)
            try:
                entries = await taking
            except asyncio.CancelledError:
                if self._takers.get(door) is not asyncio.current_task():
                    taking.cancel()
                    raise
                continue  # there is no room any more
            finally:
                self._taking.discard(taking)
            for entry in entries:
                self.receive(door, entry)

    def receive(self, door: str, received: Received) -> None:
        """A call from the door: run it or refuse it. Either way it is acknowledged with its ACCEPT."""
        self._node.outbox.acknowledge(door, received.id)
        if received.payload == WITHDRAWN:
            return
        try:
            entry = decode(received.payload)
            opening, rest = entry.frames[0], entry.frames[1:]
            if opening.kind != Kind.OPEN:
                raise MalformedEntry("an entry at a front door that opens no call")
        except MalformedEntry as error:
            self._node.bury(door, received, str(error))
            return
        key = (entry.sender, opening.call)
        if key in self._ended_calls or self._node.has_server_call(*key):
            return
        call = ServerCall(self._node, entry, opening, self._ended)
        self._calls.add(call)
        self._idle.clear()
        self._node.add_server_call(call)
        for frame in rest:
            call.receive(entry, frame)
        if not call.done():
            self._begin(call, opening)

    def _begin(self, call: ServerCall, opening: Frame) -> None:
        metadata = metadata_from(opening.open.metadata)
        if attempt_of(metadata) >= REFUSED_ATTEMPT:
            call.refuse(grpc.StatusCode.ABORTED, "this call has cost two servers their lives")
            return
        method = opening.open.method
        handler = self._registered.get(method)
        if handler is None:
            found = (generic.service(Details(method, metadata)) for generic in self._generic)
            handler = next((one for one in found if one is not None), None)
        if handler is None:
            call.refuse(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            return
        call.start(handler)

    def _ended(self, call: ServerCall) -> None:
        self._calls.discard(call)
        self._node.remove_server_call(call)
        key = (call.client, call.number)
        self._ended_calls.add(key)
        self._ended_order.append(key)
        if len(self._ended_order) > REMEMBERED:
            self._ended_calls.discard(self._ended_order.popleft())
        if self._free > 0:
            self._room.set()
        if not self._calls:
            self._idle.set()
