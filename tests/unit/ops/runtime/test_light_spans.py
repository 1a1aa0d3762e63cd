"""A light span becomes the same span of OpenTelemetry's SDK as if the SDK had made it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from ops.runtime import telemetry
from ops.runtime.light_spans import MAX_ATTRIBUTE_LENGTH, LightSpan, LightTracerProvider
from ops.runtime.telemetry import incoming, start_traces
from ops.runtime.trace_sampling import Sampling

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = incoming((("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"),))
LINKED = SpanContext(5, 6, False, TraceFlags(1))
LONG = "x" * 10 * MAX_ATTRIBUTE_LENGTH


def raised(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


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
    "two ends": lambda span: [span.end(9 * 10**18), span.set_attribute("late", 1), span.add_event("late")],
}


def otlp(span: Span, exporter: InMemorySpanExporter) -> list[OtlpSpan]:
    """What is sent of a request, without its ids."""
    encoded = encode_spans(exporter.get_finished_spans())
    spans = [each for scope in encoded.resource_spans[0].scope_spans for each in scope.spans]
    for each in spans:
        each.span_id = each.parent_span_id = b""
    return spans


def request(provider: Any, do: Callable[[Span], object]) -> Span:
    """A call with a part below it."""
    tracer = provider.get_tracer("test", "1")
    span = tracer.start_span("call", CALLER, SpanKind.SERVER, {"first": 1}, start_time=10)
    do(span)
    links = [Link(LINKED)]
    tracer.start_span("part", trace.set_span_in_context(span), links=links, start_time=20).end(30)
    span.end(40)
    return span


@pytest.mark.parametrize("done", DONE)
def test_it_is_sent_as_the_sdk_would_send_it(done: str) -> None:
    resource, exporters = Resource.create({"service.name": "test"}), [InMemorySpanExporter() for _ in "12"]
    ours = LightTracerProvider(Sampling(), resource, SimpleSpanProcessor(exporters[0]))
    theirs = TracerProvider(resource=resource, span_limits=SpanLimits(max_attribute_length=4096))
    theirs.add_span_processor(SimpleSpanProcessor(exporters[1]))
    one, other = (
        otlp(request(provider, DONE[done]), exporter)
        for provider, exporter in zip((ours, theirs), exporters, strict=True)
    )
    assert len(one) == 2
    assert one == other


def test_spans_refer_to_each_other() -> None:
    exporter = InMemorySpanExporter()
    request(LightTracerProvider(Sampling(), Resource.create({}), SimpleSpanProcessor(exporter)), lambda _: 0)
    part, call = exporter.get_finished_spans()
    assert (part.parent, call.parent.span_id) == (call.context, 0xB7AD6B7169203331)
    assert {f"{span.context.trace_id:032x}" for span in (part, call)} == {TRACE}
    assert part.context.span_id != call.context.span_id


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LightTracerProvider]:
    class NoExporter:
        def __init__(self, **_: object) -> None: ...
        def shutdown(self) -> None: ...
        def export(self, _: object) -> None: ...

    monkeypatch.setattr(telemetry, "OTLPSpanExporter", NoExporter)
    monkeypatch.setattr(trace, "set_tracer_provider", lambda _: None)
    made = start_traces("test", "test-1", "http://127.0.0.1:1")
    assert made is not None
    yield made
    made.shutdown()


def test_a_process_makes_light_spans_that_say_whose_they_are(provider: LightTracerProvider) -> None:
    span = provider.get_tracer("test").start_span("name", Context())
    assert isinstance(span, LightSpan)
    sent = span.of_sdk(provider.resource)
    assert sent.resource.attributes["service.name"] == "quire-test"
    assert sent.resource.attributes["service.instance.id"] == "test-1"


def test_it_can_be_the_current_span(provider: LightTracerProvider) -> None:
    with provider.get_tracer("test").start_as_current_span("name", Context()) as span:
        assert trace.get_current_span() is span
    assert not span.is_recording()
