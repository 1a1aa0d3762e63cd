"""A name and a span for every request."""

import uuid

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import GatewayError

_tracer = trace.get_tracer("quire.gateway")


class Requests:
    """Middleware: names each request, tells the name in `X-Request-Id`, and spans those that generate.

    The span is a child of the one named in the client's `traceparent`, if there is one. State `send` is for
    what follows a response's head: this and all other middleware look at the head alone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
                trace.get_current_span().set_attribute("http.response.status_code", message["status"])
            await send(message)

        scope["state"]["send"] = send
        if scope["method"] != "POST":
            await self._app(scope, receive, send_named)
            return
        name = f"POST {scope['path']}"
        parent = propagate.extract(dict(Headers(scope=scope)))
        attributes = {
            "quire.request_id": request_id,
            "http.request.method": "POST",
            "url.path": scope["path"],
        }
        with _tracer.start_as_current_span(name, parent, SpanKind.SERVER, attributes):
            await self._app(scope, receive, send_named)


def record(error: GatewayError) -> None:
    """Note on the request's span that it ended with `error`."""
    span = trace.get_current_span()
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, error.message))
