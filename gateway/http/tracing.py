"""An id and a span for every request."""

import uuid

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import GatewayError
from gateway.http.connections import is_loopback
from ops.runtime.trace_sampling import TENANT

_tracer = trace.get_tracer("quire.gateway")
_propagator = TraceContextTextMapPropagator()


class RequestIds:
    """Middleware: gives each request an id, sent back as `X-Request-Id`, to Anthropic's clients also as
    `request-id`.

    The state `ignored`, names of the request's fields that nobody knows, is sent back as `X-Quire-Ignored`.

    Middleware only looks at the head of a response; the state `send` sends the rest past all middleware.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        request_id = state.setdefault("request_id", uuid.uuid4().hex)  # the gateway's own may have one
        state["send"] = send

        async def send_with_id(message: Message) -> None:
            if message["type"].endswith("http.response.start"):
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                if scope["path"].startswith("/v1/messages"):
                    headers["request-id"] = request_id
                if ignored := scope["state"].get("ignored"):
                    headers["X-Quire-Ignored"] = ignored
            await send(message)

        await self._app(scope, receive, send_with_id)


class RequestSpans:
    """Middleware: gives each POST request a span. It comes after all checks of who asks.

    The span is a child of the client's `traceparent` if the request came with a valid key, or from this
    machine where there are no keys. Otherwise anybody could decide what is traced. Nothing else of the
    client's context is taken over: neither `tracestate` nor `baggage`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        attributes = {"quire.request_id": scope["state"]["request_id"], "http.request.method": "POST"}
        if (caller := scope["state"].get("caller")) is not None:
            attributes[TENANT] = caller.tenant
        span = _tracer.start_span("POST", self._parent(scope), SpanKind.SERVER, attributes)
        if span is INVALID_SPAN:  # nothing is traced
            await self._app(scope, receive, send)
            return
        with trace.use_span(span, end_on_exit=True):

            async def send_and_note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            try:
                await self._app(scope, receive, send_and_note)
            finally:
                # The router has put it there. A path that it does not know is the client's to choose.
                if (route := getattr(scope.get("route"), "path", None)) is not None:
                    span.update_name(f"POST {route}")
                    span.set_attribute("http.route", route)

    def _parent(self, scope: Scope) -> Context:
        caller, client = scope["state"].get("caller"), scope.get("client")
        trusted = caller and (caller.keyed or (client and is_loopback(client[0])))
        traceparent = Headers(scope=scope).get("traceparent") if trusted else None
        return _propagator.extract({"traceparent": traceparent}, Context()) if traceparent else Context()


def record(error: GatewayError) -> None:
    """Record on the request's span that it ended with `error`. Its status is one only if it is our fault."""
    span = trace.get_current_span()
    span.record_exception(error)
    span.set_attribute("error.type", error.error_code or error.type)
    if error.status >= 500:
        span.set_status(Status(StatusCode.ERROR, error.message))
