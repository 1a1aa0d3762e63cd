"""What spans may hold, and what goes from process to process."""

from collections.abc import Iterator

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider

from ops.runtime import telemetry
from ops.runtime.telemetry import MAX_ATTRIBUTE_LENGTH, incoming, outgoing, start_traces

TRACE = "0af7651916cd43dd8448eb211c80319c"
CARRIED = (("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"), ("baggage", "a=b"))


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[TracerProvider]:
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


def test_attributes_have_a_length(provider: TracerProvider) -> None:
    long = "x" * 10 * MAX_ATTRIBUTE_LENGTH
    span = provider.get_tracer("test").start_span("name", attributes={"at-start": long})
    span.set_attribute("later", long)
    span.record_exception(ValueError(long))
    span.add_event("event", {"its": long})
    assert {len(str(value)) for value in span.attributes.values()} == {MAX_ATTRIBUTE_LENGTH}
    for event in span.events:
        assert all(len(str(value)) <= MAX_ATTRIBUTE_LENGTH for value in event.attributes.values())


def test_baggage_stays_behind() -> None:
    context = incoming(CARRIED)
    assert trace.format_trace_id(trace.get_current_span(context).get_span_context().trace_id) == TRACE
    assert baggage.get_all(context) == {}
    assert [key for key, _ in outgoing(baggage.set_baggage("a", "b", context))] == ["traceparent"]
