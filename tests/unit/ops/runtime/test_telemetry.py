"""What spans may hold, and what goes from process to process."""

import asyncio
from types import SimpleNamespace

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata
from opentelemetry import baggage, trace
from opentelemetry.context import Context as OtelContext
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ops.runtime.light_spans import LightSpan, LightTracerProvider
from ops.runtime.telemetry import (
    FAULTS,
    Waits,
    calling,
    carried,
    failed,
    incoming,
    served,
)
from ops.runtime.trace_sampling import LONGEST_WAIT, Sampling
from proto.rpc.call import Status
from tests.support.spans import Converted

TRACE = "0af7651916cd43dd8448eb211c80319c"
CARRIED = (("traceparent", f"00-{TRACE}-b7ad6b7169203331-01"), ("baggage", "a=b"))


@pytest.fixture
def tracer() -> Tracer:
    sending = SimpleSpanProcessor(Converted(InMemorySpanExporter()))
    provider = LightTracerProvider(Sampling(slow_seconds=5.0), sending)
    return provider.get_tracer("test")


def begun(tracer: Tracer, context: OtelContext) -> LightSpan:
    span = tracer.start_span("ours", context)
    assert isinstance(span, LightSpan)
    return span


def test_baggage_stays_behind(tracer: Tracer) -> None:
    context = incoming(CARRIED)
    span = begun(tracer, context)
    assert (span.parent, span.request.trace_id) == (CARRIED[0][1], TRACE)
    assert baggage.get_all(context) == {}


@pytest.mark.parametrize(
    "traceparent",
    [
        *("", "00", f"00-{TRACE}-b7ad6b7169203331", f"00-{TRACE}-b7ad6b7169203331-01-more"),
        *(f"00-{TRACE.upper()}-b7ad6b7169203331-01", f"ff-{TRACE}-b7ad6b7169203331-01"),
        *(f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-{TRACE}-{'0' * 16}-01"),
    ],
)
def test_what_is_no_context_is_none(tracer: Tracer, traceparent: str) -> None:
    span = begun(tracer, incoming((("traceparent", traceparent),)))
    assert span.parent == ""
    assert span.request.trace_id != TRACE


@pytest.mark.parametrize("flags", ["00", "01", "03"])
def test_the_propagator_of_the_library_reads_and_writes_the_same(tracer: Tracer, flags: str) -> None:
    carrier = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-{flags}"}
    library, ours = TraceContextTextMapPropagator(), incoming(tuple(carrier.items()))
    theirs = library.extract(carrier, OtelContext())
    one, other = begun(tracer, ours), begun(tracer, theirs)
    assert one.parent == other.parent
    assert one.request.chosen == other.request.chosen == (flags != "00")
    written: dict[str, str] = {}
    library.inject(written, trace.set_span_in_context(one))
    assert carried(one) == tuple(written.items())


def test_nothing_is_carried_without_a_trace() -> None:
    assert carried(INVALID_SPAN) == ()


def rpc_error(code: grpc.StatusCode) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), "the reason")


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_a_call_s_span_says_how_it_ended(tracer: Tracer, code: grpc.StatusCode) -> None:
    parent = tracer.start_span("parent")
    spans: list[Span] = []

    def call() -> None:
        with calling("quire.Some/Thing", parent, 3) as span:
            spans.append(span)
            raise rpc_error(code)

    with pytest.raises(AioRpcError):
        call()
    (span,) = spans
    assert isinstance(span, LightSpan)
    assert dict(carried(span))["traceparent"].split("-")[2] == f"{span.span_id:016x}"
    assert (span.name, span.kind) == ("quire.Some/Thing", SpanKind.CLIENT)
    assert span.attributes["quire.attempt"] == 3
    assert span.attributes["error.type"] == code.name
    assert (span.status is not None) == (code in FAULTS)
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


async def test_a_served_call_s_span(tracer: Tracer) -> None:
    context = Context()
    status = Status(grpc.StatusCode.INVALID_ARGUMENT, "no", ())
    async with served(tracer, "ours", context, lambda _: status) as span:
        raise ValueError("no")
    assert context.aborted[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert trace.format_trace_id(span.get_span_context().trace_id) == TRACE
    assert isinstance(span, LightSpan)
    assert span.status is None, "the caller's mistake"
    with pytest.raises(ValueError, match="unexpected"):
        async with served(tracer, "ours", context, lambda _: None) as span:
            raise ValueError("unexpected")
    assert isinstance(span, LightSpan)
    assert span.status is not None
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
    class Costly(Exception):
        def __str__(self) -> str:
            raise AssertionError("nobody reads it")

    failed(INVALID_SPAN, Costly(), None)


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
