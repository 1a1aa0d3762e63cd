"""A channel for generated stubs, and the calls that they return, with the interface of grpc.aio's."""

import asyncio
import contextlib
from collections.abc import AsyncIterable, Callable, Generator, Iterable
from typing import Any, Self

import grpc
from grpc.aio import EOF
from grpc.aio import Metadata as AioMetadata

from proto.rpc.bus import door_of
from proto.rpc.call import Status
from proto.rpc.client_call import Calls, ClientCall
from proto.rpc.frames import Metadata

Serializer = Callable[[Any], bytes]
Deserializer = Callable[[bytes], Any]


class Call:
    """A handle of a call. A call is cancelled when its last handle is garbage."""

    def __init__(
        self, core: ClientCall, serialize: Serializer | None, deserialize: Deserializer | None
    ) -> None:
        self._core = core
        self._serialize: Serializer = serialize or bytes
        self._deserialize: Deserializer = deserialize or bytes

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None and core.status is None:
            # Garbage is collected in any thread, and also after the event loop was closed.
            with contextlib.suppress(RuntimeError):
                core.loop.call_soon_threadsafe(core.cancel)

    def cancel(self) -> bool:
        """Cancel the call; False if it has ended already."""
        return self._core.cancel()

    def cancelled(self) -> bool:
        status = self._core.status
        return status is not None and status.code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        return self._core.status is not None

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None without one."""
        deadline = self._core.deadline
        return None if deadline is None else max(0.0, deadline - self._core.loop.time())

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """`callback(call)` once the call has ended."""
        if self.done():
            callback(self)
        else:
            self._core.callbacks.append(lambda: callback(self))

    async def wait_for_connection(self) -> None:
        """Return once a server has accepted the call; raises the call's error if it ended before."""
        await self._core.connected.wait()
        if self._core.status is not None:
            self._core.raise_for_status()

    async def initial_metadata(self) -> AioMetadata:
        await self._core.informed.wait()
        return AioMetadata(*(self._core.initial or ()))

    async def trailing_metadata(self) -> AioMetadata:
        return AioMetadata(*(await self._ended()).trailing)

    async def code(self) -> grpc.StatusCode:
        return (await self._ended()).code

    async def details(self) -> str:
        return (await self._ended()).details

    async def debug_error_string(self) -> str:
        return ""

    async def _ended(self) -> Status:
        await self._core.over.wait()
        assert self._core.status is not None
        return self._core.status


class ResponseStream(Call):
    """A call with any number of responses: iterate over it, or `read`."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        core = self._core
        try:
            body = await core.inflow.get()
        except asyncio.CancelledError:
            core.cancel()
            raise
        if body is None:
            core.raise_for_status()
            raise StopAsyncIteration
        return self._deserialize(body)

    async def read(self) -> Any:
        """The next response; `grpc.aio.EOF` after the last one. Raises the call's error."""
        return await anext(self, EOF)


class OneResponse(Call):
    """A call with one response: await it."""

    _response: Any = EOF

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        core = self._core
        try:
            await core.over.wait()
        except asyncio.CancelledError:
            core.cancel()
            raise
        core.raise_for_status()
        if self._response is EOF:
            body = await core.inflow.get()
            if body is None:
                raise grpc.aio.AioRpcError(
                    grpc.StatusCode.INTERNAL, AioMetadata(), AioMetadata(), details="OK without a response"
                )
            self._response = self._deserialize(body)
        return self._response


class RequestStream(Call):
    """A call with any number of requests: from an iterator, or by `write`."""

    async def write(self, request: Any) -> None:
        """Send a request. Raises the call's error if it ends now, `InvalidStateError` if it has before."""
        core = self._core
        if core.status is not None:
            raise asyncio.InvalidStateError("RPC already finished.")
        if core.half_closed:
            raise asyncio.InvalidStateError("RPC is half closed after calling done_writing.")
        body = self._serialize(request)
        try:
            await core.ready()
        except asyncio.CancelledError:
            core.cancel()
            raise
        if core.status is not None:
            core.raise_for_status()
        core.send(body)

    async def done_writing(self) -> None:
        """There are no more requests. Can be called again."""
        await _half_close(self._core)


class UnaryUnaryCall(OneResponse):
    pass


class UnaryStreamCall(ResponseStream):
    pass


class StreamUnaryCall(RequestStream, OneResponse):
    pass


class StreamStreamCall(RequestStream, ResponseStream):
    pass


async def _half_close(core: ClientCall) -> None:
    await core.ready()
    if core.status is None:
        core.half_close()


async def _feed(
    core: ClientCall, requests: AsyncIterable[Any] | Iterable[Any], serialize: Serializer
) -> None:
    """Send the requests of an iterator. As in grpc.aio, an iterator that raises cancels the call."""
    try:
        if isinstance(requests, AsyncIterable):
            async for request in requests:
                await core.ready()
                core.send(serialize(request))
        else:
            for request in requests:
                await core.ready()
                core.send(serialize(request))
        await _half_close(core)
    except BaseException:
        core.cancel()
        raise


class MultiCallable:
    """One method: calling it begins a call."""

    def __init__(
        self, kind: type[Call], calls: Calls, target: tuple[str, str], coders: tuple[Serializer, Deserializer]
    ) -> None:
        self._kind, self._calls = kind, calls
        self._door, self._method = target
        self._serialize, self._deserialize = coders

    def _open(self, core: ClientCall, metadata: Metadata | None, timeout: float | None) -> Any:
        try:
            core.open(self._method, metadata, timeout)
        except ValueError:
            core.cancel()
            raise
        return self._kind(core, self._serialize, self._deserialize)


class OneRequest(MultiCallable):
    def __call__(
        self,
        request: Any,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
        credentials: None = None,
        wait_for_ready: bool | None = None,
        compression: None = None,
    ) -> Any:
        """Begin a call. It runs whether it is awaited or not."""
        body = self._serialize(request)
        core = ClientCall(self._calls, self._door, bool(wait_for_ready))
        call = self._open(core, metadata, timeout)
        core.send(body)
        core.half_close()
        return call


class ManyRequests(MultiCallable):
    def __call__(
        self,
        request_iterator: AsyncIterable[Any] | Iterable[Any] | None = None,
        *,
        timeout: float | None = None,
        metadata: Metadata | None = None,
        credentials: None = None,
        wait_for_ready: bool | None = None,
        compression: None = None,
    ) -> Any:
        """Begin a call. Without an iterator its requests are written to it."""
        core = ClientCall(self._calls, self._door, bool(wait_for_ready))
        if request_iterator is not None:
            # It takes its first step in this turn of the loop: a request that is ready goes out with OPEN.
            core.feeder = asyncio.ensure_future(_feed(core, request_iterator, self._serialize))
            core.feeder.add_done_callback(_look)
        return self._open(core, metadata, timeout)


def _look(feeder: "asyncio.Task[None]") -> None:
    """Retrieve an iterator's error, which asyncio would log. The user sees that the call was cancelled."""
    if not feeder.cancelled():
        feeder.exception()


class Channel:
    """The part of `grpc.aio.Channel` that generated stubs need. The service is in the method's name."""

    def __init__(self, calls: Calls, pool: str) -> None:
        self._calls, self._pool = calls, pool

    def unary_unary(self, method: str, *coders: Any, **named: Any) -> OneRequest:
        return OneRequest(UnaryUnaryCall, self._calls, self._target(method), _coders(*coders, **named))

    def unary_stream(self, method: str, *coders: Any, **named: Any) -> OneRequest:
        return OneRequest(UnaryStreamCall, self._calls, self._target(method), _coders(*coders, **named))

    def stream_unary(self, method: str, *coders: Any, **named: Any) -> ManyRequests:
        return ManyRequests(StreamUnaryCall, self._calls, self._target(method), _coders(*coders, **named))

    def stream_stream(self, method: str, *coders: Any, **named: Any) -> ManyRequests:
        return ManyRequests(StreamStreamCall, self._calls, self._target(method), _coders(*coders, **named))

    async def close(self, grace: float | None = None) -> None:
        """Nothing to close: connections belong to the node."""

    def _target(self, method: str) -> tuple[str, str]:
        return door_of(method, self._pool, self._calls.protocol), method


def _coders(
    request_serializer: Serializer | None = None,
    response_deserializer: Deserializer | None = None,
    _registered_method: bool | None = None,
) -> tuple[Serializer, Deserializer]:
    return request_serializer or bytes, response_deserializer or bytes
