"""The client's end of a call, with the interface of grpc.aio's call objects.

opening ──ACCEPT──▶ accepted ──STATUS──▶ ended
   └──────── cancel, deadline, nobody there, server lost ────▲
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterable, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Self

import grpc
from grpc.aio import EOF, AioRpcError, Metadata

from proto.rpc.call import MAX_BUFFERED, MAX_MESSAGE_BYTES, Arrival, Direction, Mailbox, Side
from proto.rpc.frames import metadata_from, pairs_from
from proto.rpc.resume import LOST
from proto.wire_pb2 import Entry, Frame, Kind, Open

if TYPE_CHECKING:
    from proto.rpc.node import Node

CODES = {code.value[0]: code for code in grpc.StatusCode}


class Options:
    """What a caller says about one call. Times in seconds."""

    __slots__ = ("metadata", "timeout", "wait_for_ready")

    def __init__(self, timeout: float | None, metadata: Any, wait_for_ready: bool | None) -> None:
        self.timeout = timeout
        self.metadata = pairs_from(metadata)
        self.wait_for_ready = bool(wait_for_ready)


class ClientCall:
    """One call. The node refers to it weakly: a call that its caller has forgotten is cancelled."""

    def __init__(
        self,
        node: "Node",
        door: str,
        method: str,
        coders: tuple[Callable[[Any], bytes], Any],
        options: Options,
    ) -> None:
        self._node, self._door = node, door
        self._serialize, self._deserialize = coders
        self._side = Side(node.next_call_number(), from_client=True)
        self._arrivals = Direction()
        self._mailbox = Mailbox()
        self._held: list[Frame] = []
        self._entry_id = ""
        self.server: str | None = None
        """Process id of the server, once it has accepted."""
        self._server_epoch = 0
        self._initial: Metadata | None = None
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing = Metadata()
        self._locally_cancelled = False
        self._connected = asyncio.Event()
        self._begun = asyncio.Event()
        self._ended = asyncio.Event()
        self._callbacks: list[Callable[[Any], None]] = []
        self._half_closed = False
        self._sender: asyncio.Task[None] | None = None
        self._deadline = None if options.timeout is None else time.time() + options.timeout
        self._timer: asyncio.TimerHandle | None = None
        node.add_client_call(self)
        frame = self._side.frame(Kind.OPEN)
        deadline_ms = 0 if self._deadline is None else max(1, int(self._deadline * 1000))
        frame.open.CopyFrom(Open(method=method, deadline_ms=deadline_ms, metadata=options.metadata))
        node.outbox.open(door, frame, self._added)
        if options.timeout is not None:
            self._timer = node.end_after(options.timeout, self)
        if not options.wait_for_ready:
            node.ensure_served(self, door)

    @property
    def number(self) -> int:
        return self._side.number

    # --- sending ---

    def send(self, request: Any) -> None:
        self._post(self._side.frame(Kind.MESSAGE, self._serialize(request)))

    async def write(self, request: Any) -> None:
        """Send a message. Raises the call's error if it has ended, InvalidStateError after `done_writing`."""
        self._check_open()
        self.send(request)
        await self._node.turn()

    async def done_writing(self) -> None:
        """There will be no more messages."""
        self.half_close()

    def half_close(self) -> None:
        if not self._half_closed and not self.done():
            self._half_closed = True
            self._post(self._side.frame(Kind.HALF_CLOSE))

    def consume(self, requests: AsyncIterable[Any] | Iterable[Any]) -> None:
        """Send what an iterator gives, beside whatever else happens."""
        self._sender = asyncio.ensure_future(self._consume(requests))

    async def _consume(self, requests: AsyncIterable[Any] | Iterable[Any]) -> None:
        try:
            if isinstance(requests, AsyncIterable):
                async for request in requests:
                    await self.write(request)
            else:
                for request in requests:
                    await self.write(request)
            self.half_close()
        except AioRpcError:
            pass  # the reader is told
        except asyncio.InvalidStateError:
            if not self.done():
                raise

    def _check_open(self) -> None:
        if self.done():
            if self._code is not grpc.StatusCode.OK:
                self._raise()
            raise asyncio.InvalidStateError("the call has ended")
        if self._half_closed:
            raise asyncio.InvalidStateError("done_writing was called")

    def _post(self, frame: Frame) -> None:
        if self.server is not None:
            self._node.outbox.to_peer(self.server, frame)
        elif not self._node.outbox.along(frame):
            self._held.append(frame)

    # --- receiving ---

    async def read(self) -> Any:
        """The next message, or `grpc.aio.EOF` after the last. Raises the call's error."""
        try:
            message = await self._mailbox.get()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if message is not None:
            return self._deserialize(message)
        if self._code is not grpc.StatusCode.OK:
            self._raise()
        return EOF

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is EOF:
            raise StopAsyncIteration
        return message

    async def single(self) -> Any:
        """The response of a call that has one."""
        message = await self.read()
        if message is EOF:
            raise AioRpcError(
                grpc.StatusCode.INTERNAL,
                Metadata(),
                Metadata(),
                details="the server ended the call without a response",
            )
        await self._wait()
        if self._code is not grpc.StatusCode.OK:
            self._raise()
        return message

    def _raise(self) -> None:
        assert self._code is not None
        if self._code is grpc.StatusCode.CANCELLED and self._locally_cancelled:
            raise asyncio.CancelledError
        raise AioRpcError(self._code, self._initial or Metadata(), self._trailing, details=self._details)

    # --- what the node says ---

    def receive(self, entry: Entry, frame: Frame) -> None:
        if frame.kind == Kind.ACCEPT and self.server is None:
            self._accepted(entry)
        if entry.sender != self.server:
            # A second server has the call too: it came twice to the door. Only the first one counts.
            if frame.kind == Kind.ACCEPT:
                self._node.cancel_at(entry.sender, self.number, 1)
            return
        if entry.epoch != self._server_epoch:
            return
        arrival = self._arrivals.arrive(frame.sequence)
        if arrival is Arrival.GAP:
            self.give_up(grpc.StatusCode.UNAVAILABLE, "frames of the answer were lost")
        elif arrival is Arrival.IN_ORDER:
            self._take(frame)

    def _accepted(self, entry: Entry) -> None:
        self.server, self._server_epoch = entry.sender, entry.epoch
        for frame in self._held:
            self._node.outbox.to_peer(entry.sender, frame)
        self._held.clear()
        self._connected.set()
        self._node.watch()

    def _take(self, frame: Frame) -> None:
        if frame.metadata:
            self._initial = Metadata(*metadata_from(frame.metadata))
        if frame.kind != Kind.ACCEPT:
            self._begun.set()
        if frame.kind == Kind.MESSAGE:
            if len(frame.body) > MAX_MESSAGE_BYTES:
                details = f"a message of {len(frame.body)} bytes; {MAX_MESSAGE_BYTES} are the most"
                self.give_up(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
            elif len(self._mailbox) >= MAX_BUFFERED:
                self.give_up(grpc.StatusCode.RESOURCE_EXHAUSTED, "the reader does not keep up")
            else:
                self._mailbox.put(frame.body)
        elif frame.kind == Kind.STATUS:
            status = frame.status
            code = CODES.get(status.code, grpc.StatusCode.UNKNOWN)
            self._end(code, status.details, Metadata(*metadata_from(status.metadata)))

    def server_lives(self, process_id: str, epoch: int | None) -> None:
        """The server's lease says `epoch`; None = it has none."""
        if self.server == process_id and epoch != self._server_epoch:
            self.lost(f"{process_id} is gone", Metadata((LOST, process_id)))

    def lost(self, details: str, trailing: Metadata | None = None) -> None:
        self._end(grpc.StatusCode.UNAVAILABLE, details, trailing or Metadata())

    def expire(self) -> None:
        """The deadline is over."""
        self.give_up(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def not_served(self) -> None:
        """Nobody serves the door; that does not matter any more once the call was accepted."""
        if self.server is None:
            self.give_up(grpc.StatusCode.UNAVAILABLE, f"nobody serves {self._door}")

    def give_up(self, code: grpc.StatusCode, details: str) -> None:
        """End the call from this side, and tell the server if there is one."""
        if self.done():
            return
        if self.server is not None:
            self._node.outbox.to_peer(self.server, self._side.frame(Kind.CANCEL))
        elif self._entry_id:
            self._node.outbox.delete(self._door, self._entry_id)
        else:
            self._node.outbox.recall(self.number)
        self._mailbox.clear()
        self._end(code, details, Metadata())

    def _added(self, entry_id: str) -> None:
        self._entry_id = entry_id
        if self.done() and self.server is None:
            self._node.outbox.delete(self._door, entry_id)

    def _end(self, code: grpc.StatusCode, details: str, trailing: Metadata) -> None:
        if self.done():
            return
        self._code, self._details, self._trailing = code, details, trailing
        self._mailbox.close()
        for event in (self._connected, self._begun, self._ended):
            event.set()
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._sender is not None and self._sender is not asyncio.current_task():
            self._sender.cancel()
        self._node.remove_client_call(self)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    # --- the rest of grpc.aio's interface ---

    def cancel(self) -> bool:
        """Cancel the call; False if it has ended already."""
        if self.done():
            return False
        self._locally_cancelled = True
        self.give_up(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    def cancelled(self) -> bool:
        return self._code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        return self._code is not None

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.time())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    async def initial_metadata(self) -> Metadata:
        await self._begun.wait()
        return self._initial or Metadata()

    async def trailing_metadata(self) -> Metadata:
        await self._wait()
        return self._trailing

    async def code(self) -> grpc.StatusCode:
        await self._wait()
        assert self._code is not None
        return self._code

    async def details(self) -> str:
        await self._wait()
        return self._details

    async def wait_for_connection(self) -> None:
        """Return once a server has accepted the call. Raises the call's error if none did."""
        await self._connected.wait()
        if self.server is None:
            self._raise()

    async def _wait(self) -> None:
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def __del__(self) -> None:
        if getattr(self, "_code", 0) is None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed
                self.give_up(grpc.StatusCode.CANCELLED, "the caller has forgotten the call")


class AwaitableCall(ClientCall):
    """A call with one response: `await` it."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self.single().__await__()
