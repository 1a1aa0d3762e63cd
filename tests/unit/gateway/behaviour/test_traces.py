"""One span per POST request, a child of the client's; below it the answers, and calls of the tokenizer."""

import asyncio

import grpc
import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway.http import tracing
from gateway.upstream.admission import Admission
from tests.support.spans import exported_to
from tests.unit.gateway.behaviour.test_resume import dying
from tests.unit.gateway.conftest import app_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
CHAT = "/v1/chat/completions"


class Spans(InMemorySpanExporter):
    """A span ends when its response has been sent, which may be after the client has it."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    def export(self, spans):
        if any(span.name.startswith("POST") for span in spans):
            self.ended.set()
        return super().export(spans)

    async def all(self):
        """In the order in which they ended; the request's own is the last one."""
        await asyncio.wait_for(self.ended.wait(), 60)
        return self.get_finished_spans()

    async def only(self):
        """The request's own."""
        return (await self.all())[-1]


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
    call, answer, _ = await spans.all()
    assert (call.name, call.kind) == ("quire.Tokenizer/Generate", SpanKind.CLIENT)
    assert (call.parent, answer.parent) == (answer.context, span.context)
    (metadata,) = gateway.tokenizer.metadata
    assert metadata["traceparent"] == f"00-{TRACE}-{trace.format_span_id(call.context.span_id)}-01"


async def test_an_answer_has_the_names_of_the_genai_conventions(gateway, spans):
    sent = ask(max_tokens=4, temperature=0, n=2, top_k=5)
    await gateway.http.post(CHAT, json=sent, headers=TRACEPARENT)
    _, answer, request = await spans.all()
    assert answer.name == "chat m"
    found = {key: value for key, value in answer.attributes.items() if key.startswith("gen_ai.")}
    assert found.pop("gen_ai.response.time_to_first_chunk") >= 0
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": "m",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_k": 5,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.response.finish_reasons": ("length", "length"),
    }
    everything = [value for span in (answer, request) for value in span.attributes.values()]
    assert not any("Hi" in str(value) or "Once" in str(value) for value in everything), "what was asked"


async def test_each_attempt_is_a_span(gateway, spans):
    gateway.tokenizer.generate = dying(gateway.tokenizer.generate, 3)
    await gateway.http.post(CHAT, json=ask(), headers=TRACEPARENT)
    first, second, answer, _ = await spans.all()
    assert [call.attributes["quire.attempt"] for call in (first, second)] == [1, 2]
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "killed")
    assert first.attributes["error.type"] == "UNAVAILABLE"
    assert {second.status.status_code, answer.status.status_code} == {StatusCode.UNSET}


async def test_who_waits_for_a_place_sees_it(gateway, spans):
    going, held = asyncio.Event(), asyncio.Event()
    tell = gateway.tokenizer.generate

    async def slow(request, context):
        held.set()
        await going.wait()
        async for chunk in tell(request, context):
            yield chunk

    gateway.tokenizer.generate = slow
    places = gateway.app.state.generator._admissions.setdefault("m", Admission(1))
    places.resize = lambda _: None
    async with asyncio.TaskGroup() as both:
        both.create_task(gateway.http.post(CHAT, json=ask()))
        await held.wait()
        both.create_task(gateway.http.post(CHAT, json=ask(), headers=TRACEPARENT))
        while not places.waiting:
            await asyncio.sleep(0.002)
        going.set()
    waited = [span for span in spans.get_finished_spans() if span.name == "gateway.waiting"]
    assert [trace.format_trace_id(span.context.trace_id) for span in waited] == [TRACE]


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
    assert span.attributes["error.type"] == "internal_error"
    assert [event.name for event in span.events] == ["exception"]


async def test_a_client_s_mistake_is_no_failure_of_ours(gateway, spans):
    assert (await gateway.http.post(CHAT, json=ask(temperature=-1))).status_code == 400
    span = await spans.only()
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes["error.type"] == "invalid_value"
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
    app = app_of(gateway.backend, keys_of(keys) if keys else None)
    transport = httpx.ASGITransport(app, client=(client, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        response = await http.post(CHAT, json=ask(), headers=TRACEPARENT | headers)
    assert response.status_code == 200
    span = await spans.only()
    assert (trace.format_trace_id(span.context.trace_id) == TRACE) == taken
    assert (span.parent is not None) == taken


async def test_a_request_without_a_valid_key_has_no_span(gateway, spans, keys_of):
    transport = httpx.ASGITransport(app_of(gateway.backend, keys_of({"sk": "a"})))
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
