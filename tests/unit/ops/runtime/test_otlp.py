"""A light span becomes the message that the SDK would make of the same span."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ops.runtime.light_spans import LightTracerProvider
from ops.runtime.otlp import MAX_ATTRIBUTE_LENGTH, Exporter, encoded
from ops.runtime.telemetry import start_traces
from ops.runtime.trace_sampling import Sampling

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
CALLER = TraceContextTextMapPropagator().extract(PARENT, Context())
LINKED = SpanContext(5, 6, False, TraceFlags(1))
LONG = "x" * 10 * MAX_ATTRIBUTE_LENGTH


def raised(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


class Version:
    def __str__(self) -> str:
        return "7"


DONE: dict[str, Callable[[Span], object]] = {
    "nothing": lambda span: None,
    "attributes": lambda span: span.set_attributes({"a": 1, "b": 2.5, "c": "text", "d": True, "e": [1, 2]}),
    "an attribute twice": lambda span: [span.set_attribute("a", value) for value in (1, 2)],
    "long attributes": lambda span: span.set_attribute("long", LONG),
    "many attributes": lambda span: [span.set_attribute(str(number), number) for number in range(200)],
    "an event": lambda span: span.add_event("event", {"a": 1, "long": LONG}, 77),
    "an event without attributes": lambda span: span.add_event("event", timestamp=77),
    "an error": lambda span: span.record_exception(raised("no"), {"more": 1}, 77),
    "another name": lambda span: span.update_name("another"),
    "a link": lambda span: span.add_link(LINKED, {"a": 1}),
    "a status": lambda span: span.set_status(Status(StatusCode.ERROR, "no")),
    "a status that is none": lambda span: [
        span.set_status(StatusCode.ERROR, "no"),
        span.set_status(StatusCode.UNSET),
    ],
    "a status that stays": lambda span: [span.set_status(StatusCode.OK), span.set_status(StatusCode.ERROR)],
    "lists": lambda span: span.set_attributes({"none": [], "texts": ["a", LONG], "truths": (True, False)}),
    "no text": lambda span: span.set_attribute("version", Version()),
    "two ends": lambda span: [span.end(9 * 10**18), span.set_attribute("late", 1), span.add_event("late")],
}


RESOURCE = Resource.create({"service.name": "test"})


def spans_of(request: ExportTraceServiceRequest) -> list[OtlpSpan]:
    return [span for scope in request.resource_spans[0].scope_spans for span in scope.spans]


def request(provider: Any, do: Callable[[Span], object]) -> Span:
    """A call with a part below it."""
    tracer = provider.get_tracer("test", "1")
    span = tracer.start_span("call", CALLER, SpanKind.SERVER, {"first": 1}, start_time=10)
    do(span)
    links = [Link(LINKED)]
    tracer.start_span("part", trace.set_span_in_context(span), links=links, start_time=20).end(30)
    span.end(40)
    return span


def ours(do: Callable[[Span], object]) -> ExportTraceServiceRequest:
    exporter = InMemorySpanExporter()
    request(LightTracerProvider(Sampling(), SimpleSpanProcessor(exporter)), do)
    return encoded(exporter.get_finished_spans(), RESOURCE)  # type: ignore[arg-type]


@pytest.mark.parametrize("done", DONE)
def test_it_is_what_the_sdk_would_send(done: str) -> None:
    exporter = InMemorySpanExporter()
    theirs = TracerProvider(resource=RESOURCE, span_limits=SpanLimits(max_attribute_length=4096))
    theirs.add_span_processor(SimpleSpanProcessor(exporter))
    request(theirs, DONE[done])
    one, other = ours(DONE[done]), encode_spans(exporter.get_finished_spans())
    assert len(spans_of(one)) == 2
    for span in (*spans_of(one), *spans_of(other)):
        span.span_id = span.parent_span_id = b""  # by chance
    assert one == other


def test_spans_refer_to_each_other() -> None:
    part, call = spans_of(ours(lambda _: 0))
    assert (part.parent_span_id, call.parent_span_id.hex()) == (call.span_id, "b7ad6b7169203331")
    assert {span.trace_id.hex() for span in (part, call)} == {TRACE}
    assert part.span_id != call.span_id


def test_a_number_that_is_too_large_is_a_text() -> None:
    _, call = spans_of(ours(lambda span: span.set_attribute("seed", 2**64 - 1)))
    assert call.attributes[-1].value.string_value == str(2**64 - 1)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[ExportTraceServiceRequest]:
    """What a process sends, once it ends."""
    found: list[ExportTraceServiceRequest] = []

    def keep(exporter: Exporter, spans: Any) -> None:
        found.append(exporter._translate_data(spans))

    monkeypatch.setattr(Exporter, "export", keep)
    monkeypatch.setattr(trace, "set_tracer_provider", lambda _: None)
    return found


def test_a_process_says_whose_spans_they_are(sent: list[ExportTraceServiceRequest]) -> None:
    provider = start_traces("test", "test-1", "http://127.0.0.1:1")
    assert provider is not None
    for module in ("one", "other", "one"):
        provider.get_tracer(module).start_span("name", Context()).end()
    provider.shutdown()
    (request,) = sent
    (whose,) = request.resource_spans
    says = {each.key: each.value.string_value for each in whose.resource.attributes}
    assert (says["service.name"], says["service.instance.id"]) == ("quire-test", "test-1")
    assert {scope.scope.name: len(scope.spans) for scope in whose.scope_spans} == {"one": 2, "other": 1}


class Collector(TraceServiceServicer):
    """Takes spans and forgets them."""

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:
        return ExportTraceServiceResponse()


def test_a_collector_on_this_machine_is_reached_past_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(Collector(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        for endpoint in (f"http://127.0.0.1:{port}", f"localhost:{port}"):
            exporter = Exporter(RESOURCE, endpoint)
            assert exporter.export([]) is SpanExportResult.SUCCESS
            exporter.shutdown()
    finally:
        server.stop(None)


def test_an_end_does_not_wait_for_a_collector_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "set_tracer_provider", lambda _: None)
    monkeypatch.setattr("ops.runtime.otlp.LAST_SECONDS", 0.1)
    provider = start_traces("test", "test-1", "http://127.0.0.1:1")
    assert provider is not None
    provider.get_tracer("one").start_span("name", Context()).end()
    start = time.monotonic()
    provider.shutdown()
    assert time.monotonic() - start < 3, "trying again takes it 7 s"
