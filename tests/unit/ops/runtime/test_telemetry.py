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
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, StatusCode
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


def test_baggage_stays_behind() -> None:
    context = incoming(CARRIED)
    assert trace.format_trace_id(trace.get_current_span(context).get_span_context().trace_id) == TRACE
    assert baggage.get_all(context) == {}
    assert carried(trace.get_current_span(context)) == CARRIED[:1]


@pytest.mark.parametrize(
    "traceparent",
    [
        *("", "00", f"00-{TRACE}-b7ad6b7169203331", f"00-{TRACE}-b7ad6b7169203331-01-more"),
        *(f"00-{TRACE.upper()}-b7ad6b7169203331-01", f"ff-{TRACE}-b7ad6b7169203331-01"),
        *(f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-{TRACE}-{'0' * 16}-01"),
    ],
)
def test_what_is_no_context_is_none(traceparent: str) -> None:
    context = incoming((("traceparent", traceparent),))
    assert not trace.get_current_span(context).get_span_context().is_valid


@pytest.mark.parametrize("flags", ["00", "01", "03"])
def test_the_propagator_of_the_library_reads_and_writes_the_same(flags: str) -> None:
    carrier = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-{flags}"}
    library, ours = TraceContextTextMapPropagator(), incoming(tuple(carrier.items()))
    theirs = library.extract(carrier, OtelContext())
    contexts = [trace.get_current_span(each).get_span_context() for each in (ours, theirs)]
    assert contexts[0] == contexts[1]
    assert contexts[0].is_remote
    written: dict[str, str] = {}
    library.inject(written, ours)
    assert carried(trace.get_current_span(ours)) == tuple(written.items())


def test_nothing_is_carried_without_a_trace() -> None:
    assert carried(INVALID_SPAN) == ()


def rpc_error(code: grpc.StatusCode) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), "the reason")


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_a_call_s_span_says_how_it_ended(code: grpc.StatusCode) -> None:
    provider = LightTracerProvider(Sampling(), SimpleSpanProcessor(Converted(InMemorySpanExporter())))
    parent = provider.get_tracer("test").start_span("parent")
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
