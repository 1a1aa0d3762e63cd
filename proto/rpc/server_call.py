"""The server's end of a call: runs the handler, and is the context that the handler is given."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

import grpc
from google.protobuf.message import DecodeError
from grpc.aio import EOF, AbortError, ServicerContext, UsageError

from proto.rpc.call import GAP, MAX_MESSAGE_BYTES, OVERRUN, Inflow, Status, too_large
from proto.rpc.frames import Pairs, from_pairs, to_pairs
from proto.rpc.outbox import Outbox
from proto.rpc.resume import WAITS
from proto.wire_pb2 import ACCEPT, CANCEL, HALF_CLOSE, MESSAGE, PROBE, STATUS, Frame, Kind

log = logging.getLogger(__name__)

MAX_DETAILS = 4096
"""Characters of a status's details. An error may quote a whole request."""

EXPIRED = Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


class Host(Protocol):
    """The server that a call belongs to."""

    @property
    def outbox(self) -> Outbox: ...

    def ended(self, call: "ServerCall") -> None:
        """The call's status is sent, or the caller does not want it any more."""

    def progressed(self, call: "ServerCall") -> None:
        """A suspect has sent a response."""

    def released(self, call: "ServerCall") -> None:
        """The call's handler has returned as well: its place is free."""


class ServerCall(ServicerContext):  # type: ignore[misc]
    """One call that this process has accepted."""

    def __init__(self, host: Host, client: str, epoch: int, opening: Frame, waited: float) -> None:
        """`waited`: seconds that the call was at the door."""
        self.client, self.client_epoch = client, epoch
        """The caller's process id, and its epoch when it called."""
        self.number = opening.call
        self.method = opening.open.method
        self.inflow = Inflow()
        self._host, self._outbox = host, host.outbox
        self._metadata: Pairs = from_pairs(opening.metadata)
        self._loop = asyncio.get_running_loop()
        self._deadline: float | None = None
        """Seconds, by the event loop's clock."""
        if opening.open.HasField("timeout"):
            self._deadline = self._loop.time() + opening.open.timeout - waited
        self._sent = 0
        self._ended = self._cancelled = False
        self._initial_sent = False
        self._code: grpc.StatusCode | None = None
        self._details = ""
        self._trailing: Pairs = ()
        self._callbacks: list[Callable[[Any], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deserialize: Callable[[bytes], Any] = bytes
        self._serialize: Callable[[Any], bytes] = bytes

    # --- running ---

    def start(self, handler: grpc.RpcMethodHandler) -> None:
        """Run the handler. Its first step comes before the turn's end: a quick answer goes with ACCEPT."""
        self._task = asyncio.ensure_future(self._run(handler))
        self._task.add_done_callback(lambda _: self._host.released(self))
        if self._deadline is not None:
            self._timer = self._loop.call_at(self._deadline, self.end, EXPIRED)
        self._say(ACCEPT)

    def refuse(self, status: Status) -> None:
        """End the call without running anything."""
        self._finish(status)
        self._host.released(self)

    async def _run(self, handler: Any) -> None:
        try:
            await self._handle(handler)
            status = Status(self._code or grpc.StatusCode.OK, self._details, self._trailing)
        except asyncio.CancelledError:
            # The call goes on: something that the handler awaited was cancelled.
            status = Status(grpc.StatusCode.CANCELLED, "the handler was cancelled", self._trailing)
        except AbortError:
            status = Status(self._code or grpc.StatusCode.UNKNOWN, self._details, self._trailing)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in an extension is no Exception, and ends the call as well
            if not self._ended:
                log.error("%s failed", self.method, exc_info=error)
            details = f"Unexpected {type(error)}: {error}"
            status = Status(self._code or grpc.StatusCode.UNKNOWN, details, self._trailing)
        try:
            self._finish(status)
        except Exception:
            log.exception("%s has set a status that cannot be sent", self.method)
            self._finish(Status(grpc.StatusCode.INTERNAL, "the handler's status cannot be sent"))

    async def _handle(self, handler: Any) -> None:
        self._deserialize = handler.request_deserializer or bytes
        self._serialize = handler.response_serializer or bytes
        request: Any = Requests(self)
        if not handler.request_streaming:
            try:
                request = await self.read()
            except DecodeError:
                await self.abort(grpc.StatusCode.INTERNAL, "the request cannot be read")
            if request is EOF:
                await self.abort(grpc.StatusCode.INTERNAL, "the client sent no request")
        name = f"{_ARITY[handler.request_streaming]}_{_ARITY[handler.response_streaming]}"
        result = getattr(handler, name)(request, self)
        if not handler.response_streaming:
            response = await result if inspect.isawaitable(result) else result
            if not self._ended:
                self._send(self._serialize(response))
        elif hasattr(result, "__aiter__"):
            await self._stream(result)
        else:
            await result

    async def _stream(self, responses: Any) -> None:
        outbox = self._outbox
        try:
            async for response in responses:
                self._send(self._serialize(response))
                if outbox.full:
                    await outbox.room()
        finally:
            if hasattr(responses, "aclose"):
                await responses.aclose()

    # --- sending ---

    def _send(self, body: bytes) -> None:
        if len(body) > MAX_MESSAGE_BYTES:
            self._finish(too_large(len(body)))
        if self._ended:
            raise AbortError("the call has ended")
        self._initial_sent = True
        self._sent += 1
        self._outbox.response(self.client, self.number, self._sent, MESSAGE, body)

    def _say(self, kind: Kind) -> Frame:
        self._sent += 1
        return self._outbox.response(self.client, self.number, self._sent, kind)

    def _finish(self, status: Status) -> None:
        """Send the status, unless the call has ended. Raises `ValueError` for bad trailing metadata."""
        if self._ended:
            return
        # All that can fail comes first: a frame that was begun is sent.
        pairs, code = to_pairs(status.trailing), int(status.code.value[0])
        details = status.details[:MAX_DETAILS].encode(errors="replace").decode()
        self._code, self._details, self._trailing = status.code, status.details, status.trailing
        if not self._sent:
            self._say(ACCEPT)
        frame = self._say(STATUS)
        frame.status.code, frame.status.details = code, details
        frame.metadata.extend(pairs)
        self._close()

    def _close(self) -> None:
        self._ended = True
        self.inflow.close()
        if self._timer is not None:
            self._timer.cancel()
        self._host.ended(self)
        callbacks, self._callbacks = self._callbacks, []
        loop = asyncio.get_running_loop()
        for callback in callbacks:
            loop.call_soon(callback, self)

    # --- what comes from outside the handler ---

    def receive(self, frame: Frame) -> None:
        """A frame from the client, in the order of the inbox."""
        if frame.kind == CANCEL:
            self.drop()
            return
        inflow = self.inflow
        if frame.seq != inflow.expected:
            if frame.seq > inflow.expected:
                self.end(GAP)
            return
        if frame.kind == MESSAGE:
            inflow.expected += 1
            if not inflow.put(frame.body):
                self.end(OVERRUN)
        elif frame.kind != PROBE:
            inflow.expected += 1
            if frame.kind == HALF_CLOSE:
                inflow.close()

    def probe(self) -> None:
        """Ask the client whether it knows the call and has all of its frames."""
        self._outbox.response(self.client, self.number, self._sent + 1, PROBE)

    def end(self, status: Status) -> None:
        """End the call and stop its handler."""
        if not self._ended:
            self._cancelled = True
            self._finish(status)
            self._stop()

    def drop(self) -> None:
        """The answer is not wanted any more: stop, and send nothing."""
        if not self._ended:
            self._cancelled = True
            self._close()
            self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # --- the context that handlers see ---

    async def read(self) -> Any:
        """The next request; `grpc.aio.EOF` after the last one."""
        body = await self.inflow.get()
        return EOF if body is None else self._deserialize(body)

    async def write(self, message: Any) -> None:
        """Send a response. Waits while too much waits to be sent."""
        self._send(self._serialize(message))
        if self._outbox.full:
            await self._outbox.room()

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Send initial metadata: once, and before any response. Raises `UsageError` otherwise."""
        if self._initial_sent:
            raise UsageError("Send initial metadata failed: already sent")
        pairs = to_pairs(initial_metadata)
        self._initial_sent = True
        if not self._ended:
            self._say(ACCEPT).metadata.extend(pairs)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """End the call with a status that is not OK. Raises, so that the handler ends too."""
        if code is grpc.StatusCode.OK:
            raise UsageError("Abort with OK status")
        trailing = tuple(trailing_metadata) or self._trailing
        self._finish(Status(code, details, trailing))
        raise AbortError("Locally aborted.")

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    def invocation_metadata(self) -> Pairs:
        return self._metadata

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Raises `ValueError` for what gRPC would not take."""
        to_pairs(trailing_metadata)
        self._trailing = tuple(trailing_metadata)

    def trailing_metadata(self) -> Pairs:
        return self._trailing

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode | None:
        return self._code

    def details(self) -> str:
        return self._details

    def peer(self) -> str:
        return f"quire:{self.client}"

    def peer_identities(self) -> Iterable[bytes] | None:
        return None

    def peer_identity_key(self) -> str | None:
        return None

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {}

    def set_compression(self, compression: grpc.Compression) -> None:
        """Nothing is compressed."""

    def disable_next_message_compression(self) -> None:
        """Nothing is compressed."""

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.time())

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self._ended

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """`callback(context)` once the call has ended."""
        if self._ended:
            callback(self)
        else:
            self._callbacks.append(callback)


class SuspectCall(ServerCall):
    """A call that may be the reason why its servers died; see `resume.py`.

    Its first frame says that it waits for its turn. Before its handler runs, the caller has been told that it
    does: otherwise a handler that ends the process at once would look like one that has not begun.
    """

    def __init__(self, host: Host, client: str, epoch: int, opening: Frame, waited: float) -> None:
        super().__init__(host, client, epoch, opening, waited)
        self.turn = asyncio.Event()
        """Set when the handler may run."""

    async def _run(self, handler: Any) -> None:
        await self.turn.wait()
        self._say(ACCEPT)
        await self._outbox.sent()
        await super()._run(handler)

    def _say(self, kind: Kind) -> Frame:
        frame = super()._say(kind)
        if self._sent == 1:
            frame.metadata.extend(to_pairs(((WAITS, "1"),)))
        return frame

    def _send(self, body: bytes) -> None:
        super()._send(body)
        self._host.progressed(self)


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


_ARITY = {False: "unary", True: "stream"}
