"""The server's end of a call: runs the handler, with the interface of grpc.aio's servicer context."""

import asyncio
import inspect
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from grpc.aio import EOF, AbortError

from proto.rpc.call import MAX_BUFFERED, MAX_MESSAGE_BYTES, Arrival, Direction, Mailbox, Side
from proto.rpc.frames import Metadata, metadata_from, pairs_from
from proto.wire_pb2 import Entry, Frame, Kind, Status

if TYPE_CHECKING:
    from proto.rpc.node import Node

log = logging.getLogger(__name__)


class ServerCall:
    """One call, and the context that its handler is given."""

    def __init__(
        self, node: "Node", entry: Entry, frame: Frame, ended: Callable[["ServerCall"], None]
    ) -> None:
        self._node = node
        self.client, self._client_epoch = entry.sender, entry.epoch
        self.number = frame.call
        self._side = Side(frame.call, from_client=False)
        self._arrivals = Direction()
        self._arrivals.arrive(frame.sequence)
        self._mailbox = Mailbox()
        self._metadata = metadata_from(frame.open.metadata)
        self._deadline = frame.open.deadline_ms / 1000 if frame.open.deadline_ms else None
        self._timer: asyncio.TimerHandle | None = None
        self._notify_ended = ended
        self._task: asyncio.Task[None] | None = None
        self._initial: list[Any] = []
        self._trailing: Metadata = ()
        self._code = grpc.StatusCode.OK
        self._details = ""
        self._ended = False
        self._cancelled = False
        self._callbacks: list[Callable[[Any], None]] = []
        self._deserialize: Callable[[bytes], Any] = bytes
        self._serialize: Callable[[Any], bytes] = bytes

    # --- running ---

    def accept(self) -> None:
        """Tell the client who has the call."""
        self._send(self._side.frame(Kind.ACCEPT))

    def refuse(self, code: grpc.StatusCode, details: str) -> None:
        self.accept()
        self._finish(code, details)

    def start(self, handler: Any) -> None:
        """Run the handler. Its task begins before the turn's frames leave: a quick answer goes along."""
        self._deserialize = handler.request_deserializer or bytes
        self._serialize = handler.response_serializer or bytes
        if self._deadline is not None:
            self._timer = asyncio.get_running_loop().call_later(self._deadline - time.time(), self.expire)
        self._task = asyncio.ensure_future(self._run(handler))
        self.accept()

    async def _run(self, handler: Any) -> None:
        try:
            await self._handle(handler)
        except AbortError:
            pass
        except asyncio.CancelledError:
            if not self._ended:  # not we, but someone within the handler cancelled it
                self._set(grpc.StatusCode.CANCELLED, "the handler was cancelled")
        except Exception as error:
            if self._code is grpc.StatusCode.OK:
                log.exception("%s failed", handler)
                self._set(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")
        self._finish(self._code, self._details)

    async def _handle(self, handler: Any) -> None:
        request: Any = self
        if handler.request_streaming:
            request = Requests(self)
        elif (request := await self.read()) is EOF:
            self._set(grpc.StatusCode.INTERNAL, "the client sent no request")
            return
        kind = ("unary", "stream")
        name = f"{kind[handler.request_streaming]}_{kind[handler.response_streaming]}"
        result = getattr(handler, name)(request, self)
        if hasattr(result, "__aiter__"):
            async for response in result:
                await self.write(response)
            return
        response = await result if inspect.isawaitable(result) else result
        if not handler.response_streaming:
            self._send_message(response)

    def _finish(self, code: grpc.StatusCode, details: str) -> None:
        """Send the status, and be done."""
        if self._ended:
            return
        frame = self._with_initial(self._side.frame(Kind.STATUS))
        frame.status.CopyFrom(
            Status(code=code.value[0], details=details, metadata=pairs_from(self._trailing))
        )
        self._send(frame)
        self._close()

    def _close(self) -> None:
        self._ended = True
        self._mailbox.close()
        if self._timer is not None:
            self._timer.cancel()
        self._notify_ended(self)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def _stop_handler(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # --- what the node says ---

    def receive(self, entry: Entry, frame: Frame) -> None:
        if self._ended or entry.epoch != self._client_epoch:
            return
        arrival = self._arrivals.arrive(frame.sequence)
        if arrival is Arrival.GAP:
            self.end(grpc.StatusCode.UNAVAILABLE, "frames of the request were lost")
        elif arrival is Arrival.REPEATED:
            return
        elif frame.kind == Kind.CANCEL:
            self.drop()
        elif frame.kind == Kind.HALF_CLOSE:
            self._mailbox.close()
        elif frame.kind == Kind.MESSAGE:
            if len(frame.body) > MAX_MESSAGE_BYTES:
                details = f"a message of {len(frame.body)} bytes; {MAX_MESSAGE_BYTES} are the most"
                self.end(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
            elif len(self._mailbox) >= MAX_BUFFERED:
                self.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "the handler does not keep up")
            else:
                self._mailbox.put(frame.body)

    def client_lives(self, process_id: str, epoch: int | None) -> None:
        """The client's lease says `epoch`; None = it has none."""
        if self.client == process_id and epoch != self._client_epoch:
            self.drop()

    def drop(self) -> None:
        """Nobody wants the answer any more: stop, and say nothing."""
        if not self._ended:
            self._cancelled = True
            self._close()
            self._stop_handler()

    def end(self, code: grpc.StatusCode, details: str) -> None:
        """End the call from outside its handler."""
        if not self._ended:
            self._cancelled = True
            self._finish(code, details)
            self._stop_handler()

    def expire(self) -> None:
        self.end(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    # --- the context that handlers see ---

    async def read(self) -> Any:
        """The next request, or `grpc.aio.EOF`."""
        message = await self._mailbox.get()
        return EOF if message is None else self._deserialize(message)

    async def write(self, message: Any) -> None:
        """Send a response, and let others have their turn."""
        self._send_message(message)
        await self._node.turn()

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Goes with the first response or the status."""
        self._initial = pairs_from(initial_metadata)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """End the call with a status; raises so that the handler ends too."""
        if code is grpc.StatusCode.OK:
            raise ValueError("abort needs a status that is not OK")
        if trailing_metadata:
            self._trailing = tuple(trailing_metadata)
        self._set(code, details)
        raise AbortError("Locally aborted.")

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        self._trailing = tuple(trailing_metadata)

    def trailing_metadata(self) -> Metadata:
        return self._trailing

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def peer(self) -> str:
        return self.client

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.time())

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self._ended

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._ended:
            callback(self)
        else:
            self._callbacks.append(callback)

    def _set(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def _send_message(self, message: Any) -> None:
        self._send(self._with_initial(self._side.frame(Kind.MESSAGE, self._serialize(message))))

    def _with_initial(self, frame: Frame) -> Frame:
        if self._initial:
            frame.metadata.extend(self._initial)
            self._initial = []
        return frame

    def _send(self, frame: Frame) -> None:
        if not self._ended:
            self._node.outbox.to_peer(self.client, frame)


class Requests:
    """The requests of a call that streams them."""

    def __init__(self, call: ServerCall) -> None:
        self._call = call

    def __aiter__(self) -> "Requests":
        return self

    async def __anext__(self) -> Any:
        request = await self._call.read()
        if request is EOF:
            raise StopAsyncIteration
        return request
