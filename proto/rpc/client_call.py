"""The caller's end of a call, which the node keeps. Users hold a handle of `proto.rpc.client`."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import grpc
from grpc.aio import AioRpcError
from grpc.aio import Metadata as AioMetadata

from proto.rpc.call import CODES, GAP, MAX_MESSAGE_BYTES, OVERRUN, Inflow, Status, too_large
from proto.rpc.frames import Metadata, Pairs, from_pairs, to_pairs
from proto.rpc.outbox import Outbox
from proto.rpc.resume import LOST, OUTSIDE, WAITS
from proto.wire_pb2 import (
    ACCEPT,
    CANCEL,
    GONE,
    HALF_CLOSE,
    MESSAGE,
    OPEN,
    PROBE,
    STATUS,
    Entry,
    Frame,
    Kind,
)

MAX_OPENING = 16
"""Most frames in the entry that opens a call."""
MAX_OPENING_BYTES = MAX_MESSAGE_BYTES
"""Bytes of messages in it, above which further ones wait for ACCEPT."""
CANCELLED = Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
EXPIRED = Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


class Calls(Protocol):
    """What a call needs of its node."""

    outbox: Outbox
    protocol: int

    def begin(self, call: "ClientCall") -> int:
        """Keep the call, and give it its number."""
        ...

    def ended(self, call: "ClientCall") -> None: ...


class ClientCall:
    """A call waits at its door until a server accepts it. Then it stays with that server, in the epoch that
    the server had, until it ends."""

    def __init__(self, calls: Calls, door: str, wait_for_ready: bool) -> None:
        self.door, self.wait_for_ready = door, wait_for_ready
        self.server: str | None = None
        """Id of the process that has accepted the call."""
        self.server_epoch = 0
        self.entry_id: str | None = None
        """Id of the opening entry, once it is at the door; empty if the id is not known."""
        self.status: Status | None = None
        self.initial: Pairs | None = None
        self.inflow = Inflow()
        self.deadline: float | None = None
        """Seconds, by the event loop's clock."""
        self.connected = asyncio.Event()
        """Set once the call was accepted, or has ended."""
        self.informed = asyncio.Event()
        """Set once initial metadata can be known, or the call has ended."""
        self.over = asyncio.Event()
        self.callbacks: list[Callable[[], None]] = []
        self.half_closed = False
        self.cancelled_here = False
        self.feeder: asyncio.Task[None] | None = None
        """Sends the requests of an iterator."""
        self.loop = asyncio.get_running_loop()
        self._calls, self._outbox = calls, calls.outbox
        self._sent = self._opened = 0
        self._waits = False
        self._opening: Entry | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.number = calls.begin(self)

    def open(self, method: str, metadata: Metadata | None, timeout: float | None) -> None:
        """Go to the door. Raises `ValueError` for metadata that gRPC would not take."""
        pairs = to_pairs(metadata)
        self._opening = self._outbox.open(self.door, self)
        frame = self._opening.requests.add(call=self.number, seq=self._next(), kind=OPEN, metadata=pairs)
        frame.open.method, frame.open.protocol = method, self._calls.protocol
        if timeout is not None:
            self.deadline, frame.open.timeout = self.loop.time() + timeout, timeout
            self._timer = self.loop.call_later(timeout, self.end, EXPIRED)

    # --- sending ---

    def send(self, body: bytes) -> None:
        """A message. It must be in the opening entry's time, or after ACCEPT: see `ready`."""
        if len(body) > MAX_MESSAGE_BYTES:
            self.end(too_large(len(body)))
        else:
            self._say(MESSAGE, body)

    def half_close(self) -> None:
        if not self.half_closed:
            self.half_closed = True
            self._say(HALF_CLOSE)

    async def ready(self) -> None:
        """Return once a frame can be sent, or the call has ended. Waits while too much waits to be sent."""
        full = self._sent > MAX_OPENING or self._opened >= MAX_OPENING_BYTES
        if self.server is None and (self._opening is None or full):
            await self.connected.wait()
        if self._outbox.full:
            await self._outbox.room()

    def _say(self, kind: Kind, body: bytes = b"") -> None:
        if self._opening is not None:
            self._opening.requests.add(call=self.number, seq=self._next(), kind=kind, body=body)
            self._opened += len(body)
        elif self.server is not None and self.status is None:
            self._outbox.request(self.server, self.number, self._next(), kind, body)

    def _next(self) -> int:
        self._sent += 1
        return self._sent

    # --- heartbeats: see `probe.py` ---

    def probe(self) -> None:
        """Ask the server whether it knows the call and has all of its frames."""
        if self.server is not None:
            self._outbox.request(self.server, self.number, self._sent + 1, PROBE)

    def vanished(self) -> None:
        """The call is not at its door any more, and everything in the inbox was read.

        It counts as the loss of a server: it may be a dead letter because it has ended all who took it.
        """
        if self.server is None:
            lost = ((LOST, self.door),)
            self.end(Status(grpc.StatusCode.UNAVAILABLE, f"the call was lost at {self.door}", lost))

    # --- on the way to the door ---

    def departed(self) -> None:
        """See `Opener`."""
        self._opening = None

    def at_door(self, entry_id: str) -> None:
        """See `Opener`."""
        self.entry_id = entry_id
        if self.status is not None and self.server is None:
            self._withdraw()

    def refused(self) -> None:
        """See `Opener`."""
        self.end(Status(grpc.StatusCode.UNAVAILABLE, f"Redis lets this process make no calls at {self.door}"))

    def wanted(self) -> bool:
        """See `Opener`."""
        return self.status is None

    def _withdraw(self) -> None:
        if self.entry_id:
            self._outbox.settle(self.door, self.entry_id)

    # --- receiving ---

    def receive(self, sender: str, epoch: int, frame: Frame) -> None:
        """A frame from a server, in the order of its inbox."""
        kind, seq = frame.kind, frame.seq
        if self.server is None and kind == ACCEPT:
            self.server, self.server_epoch = sender, epoch
            self.connected.set()
        elif sender != self.server:
            # Two servers accepted the call: the first one keeps it, and the other one is told to cancel.
            # So is a server whose ACCEPT was lost.
            if kind in (ACCEPT, PROBE):
                self._outbox.request(sender, self.number, 0, CANCEL)
            return
        inflow = self.inflow
        if seq != inflow.expected or epoch != self.server_epoch:
            if epoch == self.server_epoch and (seq > inflow.expected or kind == GONE):
                self.end(GAP)
            return
        if kind == MESSAGE:
            inflow.expected += 1
            if self.initial is None:
                self._inform(())
            if not inflow.put(frame.body):
                self.end(OVERRUN)
        elif kind == STATUS:
            inflow.expected += 1
            code = CODES.get(frame.status.code, grpc.StatusCode.UNKNOWN)
            self._finish(Status(code, frame.status.details, from_pairs(frame.metadata)))
        elif kind != PROBE:
            inflow.expected += 1
            pairs = from_pairs(frame.metadata)
            self._waits = any(key == WAITS for key, _ in pairs)
            if pairs and not self._waits:
                self._inform(pairs)

    def _inform(self, initial: Pairs) -> None:
        self.initial = initial
        self.informed.set()

    # --- the end ---

    def lost(self, outside: str = "") -> None:
        """The server's lease is gone, or it has fenced itself. `outside`: why no call is to blame, if so."""
        outside = outside or ("waited" if self._waits else "")
        trailing = ((LOST, str(self.server)), *(((OUTSIDE, outside),) if outside else ()))
        self.end(Status(grpc.StatusCode.UNAVAILABLE, f"{self.server} is gone", trailing))

    def cancel(self) -> bool:
        """Cancel the call; False if it has ended already."""
        if self.status is not None:
            return False
        self.cancelled_here = True
        self.end(CANCELLED)
        return True

    def end(self, status: Status) -> None:
        """End the call from this side, and stop the server's work for it."""
        if self.status is not None:
            return
        if self._opening is not None:
            self._opening = None
            self._outbox.recall(self)
        elif self.server is not None:
            self._outbox.request(self.server, self.number, 0, CANCEL)
        else:
            self._withdraw()
        # What a lost server has sent is kept: the caller resumes from there.
        self._finish(status, discard=status.code is not grpc.StatusCode.UNAVAILABLE)

    def drop(self, status: Status) -> None:
        """End the call and send nothing: this process has lost its lease."""
        self._opening = None
        self._finish(status)

    def _finish(self, status: Status, discard: bool = False) -> None:
        if self.status is not None:
            return
        self.status = status
        self._calls.ended(self)
        self.inflow.close(discard)
        self.connected.set()
        self.informed.set()
        self.over.set()
        if self._timer is not None:
            self._timer.cancel()
        if self.feeder is not None and self.feeder is not asyncio.current_task():
            self.feeder.cancel()
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            self.loop.call_soon(callback)

    def raise_for_status(self) -> None:
        """Raise `AioRpcError` or `CancelledError` unless the call has ended with OK."""
        assert self.status is not None
        if self.cancelled_here:
            raise asyncio.CancelledError
        if self.status.code is not grpc.StatusCode.OK:
            initial, trailing = AioMetadata(*(self.initial or ())), AioMetadata(*self.status.trailing)
            raise AioRpcError(self.status.code, initial, trailing, details=self.status.details)
