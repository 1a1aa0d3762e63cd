"""What spans may hold, and what goes from process to process."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode

from ops.runtime import telemetry
from ops.runtime.telemetry import (
    FAULTS,
    MAX_ATTRIBUTE_LENGTH,
    Waits,
    calling,
    carried,
    failed,
    incoming,
    outgoing,
    served,
    start_traces,
)
from ops.runtime.trace_sampling import LONGEST_WAIT, KeptIfFaulty, Sampling
from proto.rpc.call import Status

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


def test_nothing_is_carried_without_a_trace() -> None:
    assert carried(INVALID_SPAN) == ()


def test_only_who_wants_the_rest_holds_it(provider: TracerProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    held = start_traces("test", "test-1", "http://127.0.0.1:1", Sampling(0.1, slow_seconds=1.0))
    assert held is not None
    (processor,) = held._active_span_processor._span_processors
    assert isinstance(processor, KeptIfFaulty)
    held.shutdown()
    (processor,) = provider._active_span_processor._span_processors
    assert not isinstance(processor, KeptIfFaulty)


def rpc_error(code: grpc.StatusCode) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), "the reason")


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_a_call_s_span_says_how_it_ended(code: grpc.StatusCode) -> None:
    tracer = TracerProvider().get_tracer("test")
    parent = tracer.start_span("parent")
    spans: list[Span] = []

    def call() -> None:
        with calling(tracer, "quire.Some/Thing", parent, 3) as span:
            spans.append(span)
            raise rpc_error(code)

    with pytest.raises(AioRpcError):
        call()
    (span,) = spans
    assert isinstance(span, ReadableSpan)
    assert dict(carried(span))["traceparent"].split("-")[2] == f"{span.context.span_id:016x}"
    assert (span.name, span.kind) == ("quire.Some/Thing", SpanKind.CLIENT)
    assert span.attributes["quire.attempt"] == 3
    assert span.attributes["error.type"] == code.name
    assert (span.status.status_code is StatusCode.ERROR) == (code in FAULTS)
    assert span.end_time is not None


class Context:
    """Of a served call."""

    aborted: tuple[object, ...] = ()

    def __init__(self, left: float | None = None) -> None:
        self.time_remaining = lambda: left

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return CARRIED

    async def abort(self, *how: object) -> None:
        self.aborted = how


async def test_a_served_call_s_span() -> None:
    tracer, context = TracerProvider().get_tracer("test"), Context()
    status = Status(grpc.StatusCode.INVALID_ARGUMENT, "no", ())
    async with served(tracer, "ours", context, lambda _: status) as span:
        raise ValueError("no")
    assert context.aborted[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert trace.format_trace_id(span.get_span_context().trace_id) == TRACE
    assert span.status.status_code is StatusCode.UNSET, "the caller's mistake"
    with pytest.raises(ValueError, match="unexpected"):
        async with served(tracer, "ours", context, lambda _: None) as span:
            raise ValueError("unexpected")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "unexpected")


@pytest.mark.parametrize(("left", "late"), [(None, False), (5.0, False), (0.001, True), (-0.1, True)])
async def test_a_call_that_its_caller_ends_has_not_failed(left: float | None, late: bool) -> None:
    """Unless that is for its deadline."""
    tracer, spans = TracerProvider().get_tracer("test"), []

    async def serve() -> None:
        async with served(tracer, "ours", Context(left), lambda _: None) as span:
            spans.append(span)
            await asyncio.sleep(60)

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (span,) = spans
    assert (span.status.status_code is StatusCode.ERROR) == late
    assert [event.name for event in span.events] == ([] if late else ["cancelled"])


def test_errors_cost_nothing_where_nobody_looks() -> None:
    failed(INVALID_SPAN, ValueError(), None)


def test_the_longest_wait() -> None:
    time = SimpleNamespace(now=10.0)
    waits = Waits(lambda: time.now)
    assert [waits.came() for time.now in (13.0, 14.0, 19.0)] == [3.0, 1.0, 5.0]
    span = TracerProvider().get_tracer("test").start_span("name")
    waits.note(span)
    assert span.attributes[LONGEST_WAIT] == 5.0
    time.now = 30.0
    waits.note(span)
    assert span.attributes[LONGEST_WAIT] == 11.0, "somebody still waits"
