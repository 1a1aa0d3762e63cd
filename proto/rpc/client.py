"""A channel for generated stubs. The service, and with it the front door, is in the method's name."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from proto.rpc.client_call import AwaitableCall, ClientCall, Options

if TYPE_CHECKING:
    from proto.rpc.node import Node


def door_of(method_or_service: str, pool: str) -> str:
    """`calls:<Service>[:<pool>]` of "/package.Service/Method" or "package.Service"."""
    service = method_or_service.strip("/").split("/")[0].rpartition(".")[2]
    return f"calls:{service}:{pool}" if pool else f"calls:{service}"


class Channel:
    """Has what generated stubs need of `grpc.aio.Channel`."""

    def __init__(self, node: "Node", pool: str) -> None:
        self._node = node
        self._pool = pool

    def unary_unary(self, method: str, *coders: Any, **more: Any) -> "Multicallable":
        return self._multicallable(AwaitableCall, False, method, coders, more)

    def unary_stream(self, method: str, *coders: Any, **more: Any) -> "Multicallable":
        return self._multicallable(ClientCall, False, method, coders, more)

    def stream_unary(self, method: str, *coders: Any, **more: Any) -> "Multicallable":
        return self._multicallable(AwaitableCall, True, method, coders, more)

    def stream_stream(self, method: str, *coders: Any, **more: Any) -> "Multicallable":
        return self._multicallable(ClientCall, True, method, coders, more)

    async def close(self, grace: float | None = None) -> None:
        """Nothing to close: the node has the connections."""

    def _multicallable(
        self,
        kind: type[ClientCall],
        streams: bool,
        method: str,
        coders: tuple[Any, ...],
        more: dict[str, Any],
    ) -> "Multicallable":
        given = dict(zip(("request_serializer", "response_deserializer"), coders, strict=False)) | more
        serialize = given.get("request_serializer") or bytes
        deserialize = given.get("response_deserializer") or bytes
        return Multicallable(
            self._node, kind, streams, (door_of(method, self._pool), method), (serialize, deserialize)
        )


class Multicallable:
    """One method of a service: calling it begins a call."""

    def __init__(
        self,
        node: "Node",
        kind: type[ClientCall],
        streams: bool,
        target: tuple[str, str],
        coders: tuple[Callable[[Any], bytes], Callable[[bytes], Any]],
    ) -> None:
        self._node, self._kind, self._streams, self._coders = node, kind, streams, coders
        self._door, self._method = target

    def __call__(
        self,
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Any = None,
        wait_for_ready: bool | None = None,
        request_iterator: Any = None,
        credentials: None = None,
        compression: None = None,
    ) -> Any:
        options = Options(timeout, metadata, wait_for_ready)
        call = self._kind(self._node, self._door, self._method, self._coders, options)
        if not self._streams:
            call.send(request)
            call.half_close()
        elif (requests := request_iterator if request is None else request) is not None:
            call.consume(requests)
        return call
