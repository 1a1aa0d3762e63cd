"""A light span behaves as OpenTelemetry's API has it. What is sent of it: `test_otlp.py`."""

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from ops.runtime.light_spans import LightSpan, LightTracerProvider
from ops.runtime.trace_sampling import Sampling
from tests.support.spans import Converted


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> trace.Tracer:
    provider = LightTracerProvider(Sampling(), SimpleSpanProcessor(Converted(exporter)))
    return provider.get_tracer("test")


def test_it_can_be_the_current_span(tracer: trace.Tracer) -> None:
    with tracer.start_as_current_span("name", Context()) as span:
        assert isinstance(span, LightSpan)
        assert trace.get_current_span() is span
        below = tracer.start_span("below")
    assert not span.is_recording()
    assert isinstance(below, LightSpan)
    assert below.parent is span


def test_an_error_within_it_is_recorded(tracer: trace.Tracer, exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="no"), tracer.start_as_current_span("name", Context()):
        raise ValueError("no")
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError: no")
    assert [event.name for event in span.events] == ["exception"]
