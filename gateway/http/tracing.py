"""An id and a span for every request."""

import uuid

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import GatewayError

_tracer = trace.get_tracer("quire.gateway")


class RequestTracing:
    """Middleware: gives each request an id, sent back as `X-Request-Id`, and each POST request a span.

    The span is a child of the client's `traceparent`, if there is one. Middleware only looks at the head of a
    response; the state `send` sends the rest of it past all middleware.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
                trace.get_current_span().set_attribute("http.response.status_code", message["status"])
            await send(message)

        scope["state"]["send"] = send
        if scope["method"] != "POST":
            await self._app(scope, receive, send_with_id)
            return
        name = f"POST {scope['path']}"
        parent = propagate.extract(dict(Headers(scope=scope)))
        attributes = {
            "quire.request_id": request_id,
            "http.request.method": "POST",
            "url.path": scope["path"],
        }
        with _tracer.start_as_current_span(name, parent, SpanKind.SERVER, attributes):
            await self._app(scope, receive, send_with_id)


def record(error: GatewayError) -> None:
    """Record on the request's span that it ended with `error`."""
    span = trace.get_current_span()
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, error.message))
