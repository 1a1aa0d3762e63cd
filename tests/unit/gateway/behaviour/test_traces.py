"""One span per generating request, a child of the client's, with the call to the tokenizer below it."""

import asyncio

import grpc
import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway.app import create_app
from gateway.http import tracing
from tests.support.spans import exported_to

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
CHAT = "/v1/chat/completions"


class Spans(InMemorySpanExporter):
    """A span ends when its response has been sent, which may be after the client has it."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    def export(self, spans):
        self.ended.set()
        return super().export(spans)

    async def only(self):
        await asyncio.wait_for(self.ended.wait(), 60)
        (span,) = self.get_finished_spans()
        return span


@pytest.fixture
def spans(monkeypatch):
    return exported_to(Spans(), monkeypatch, tracing, "_tracer")


def ask(**more):
    return {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **more}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_a_span_of_the_clients_trace(gateway, spans, stream):
    response = await gateway.http.post(CHAT, json=ask(stream=stream), headers=TRACEPARENT)
    span = await spans.only()
    assert (span.name, span.kind) == (f"POST {CHAT}", SpanKind.SERVER)
    assert trace.format_trace_id(span.context.trace_id) == TRACE
    assert trace.format_span_id(span.parent.span_id) == SPAN
    assert span.attributes["quire.request_id"] == response.headers["x-request-id"]
    assert span.attributes["http.response.status_code"] == 200
    assert span.status.status_code is StatusCode.UNSET
    (metadata,) = gateway.tokenizer.metadata
    assert metadata["traceparent"] == f"00-{TRACE}-{trace.format_span_id(span.context.span_id)}-01"


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_recorded(gateway, spans, stream):
    async def generate(request, context):
        await context.abort(grpc.StatusCode.INTERNAL, "broken")
        yield

    gateway.tokenizer.generate = generate
    await gateway.http.post(CHAT, json=ask(stream=stream))
    span = await spans.only()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["quire.request_id"] in span.status.description
    assert span.attributes["http.response.status_code"] == 500
    assert [event.name for event in span.events] == ["exception"]


BAGGAGE = {"baggage": "a=b", "tracestate": "vendor=secret"}


async def test_nothing_else_of_the_clients_context_goes_on(gateway, spans):
    await gateway.http.post(CHAT, json=ask(), headers=TRACEPARENT | BAGGAGE)
    await spans.only()
    (metadata,) = gateway.tokenizer.metadata
    assert "traceparent" in metadata
    assert not {"baggage", "tracestate"} & set(metadata)


@pytest.mark.parametrize(
    ("keys", "client", "headers", "taken"),
    [
        (None, "127.0.0.1", {}, True),
        (None, "::1", {}, True),
        (None, "192.0.2.1", {}, False),
        ({"sk": "a"}, "192.0.2.1", {"authorization": "Bearer sk"}, True),
    ],
)
async def test_whose_trace_a_request_is(gateway, spans, keys_of, keys, client, headers, taken):
    app = create_app(gateway.backend, keys_of(keys) if keys else None)
    transport = httpx.ASGITransport(app, client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        response = await http.post(CHAT, json=ask(), headers=TRACEPARENT | headers)
    assert response.status_code == 200
    span = await spans.only()
    assert (trace.format_trace_id(span.context.trace_id) == TRACE) == taken
    assert (span.parent is not None) == taken


async def test_a_request_without_a_valid_key_has_no_span(gateway, spans, keys_of):
    transport = httpx.ASGITransport(create_app(gateway.backend, keys_of({"sk": "a"})))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.post(CHAT, json=ask(), headers=TRACEPARENT)).status_code == 401
    assert spans.get_finished_spans() == ()


async def test_a_span_does_not_carry_a_path_of_the_clients(gateway, spans):
    assert (await gateway.http.post("/v1/" + "x" * 50_000, json=ask())).status_code == 404
    span = await spans.only()
    assert span.name == "POST"
    assert all(len(str(value)) < 100 for value in span.attributes.values())


async def test_a_span_is_named_by_its_route(gateway, spans):
    await gateway.http.post(CHAT + "?" + "x" * 1000, json=ask())
    span = await spans.only()
    assert (span.name, span.attributes["http.route"]) == (f"POST {CHAT}", CHAT)


async def test_what_does_not_generate_has_no_span(gateway, spans):
    assert (await gateway.http.get("/health/live")).headers["x-request-id"]
    await gateway.http.get("/v1/models")
    assert spans.get_finished_spans() == ()
