"""Traces: OpenTelemetry spans of every process, carried between them as W3C trace context.

Without `QUIRE_OTLP_ENDPOINT` no provider is set and every call here costs next to nothing. Then no span is
valid, and a span below one that is not valid is that span itself.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.trace import Status as SpanStatus
from opentelemetry.trace import StatusCode as SpanStatusCode

from ops.runtime.light_spans import Caller, LightSpan, LightTracerProvider, written
from ops.runtime.otlp import MAX_ATTRIBUTE_LENGTH, Exporter, Sender
from ops.runtime.trace_sampling import LONGEST_WAIT, Sampling
from proto.rpc.call import Status

FAULTS = frozenset(
    {
        *(grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNIMPLEMENTED),
        *(grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DATA_LOSS),
        *(grpc.StatusCode.ABORTED, grpc.StatusCode.FAILED_PRECONDITION),
    }
)
"""Statuses of calls that failed by no fault of their callers: their spans have the status ERROR."""

LATE_SECONDS = 0.1
"""A call that is cancelled with less time left until its deadline was cancelled because of that."""

TRACEPARENT = "traceparent"
"""Metadata that carries a span's context: of W3C Trace Context this alone. Baggage is the client's."""
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

Metadata = Sequence[tuple[str, str | bytes]]


def start_traces(
    service: str, process_id: str, endpoint: str, sampling: Sampling | None = None
) -> LightTracerProvider | None:
    """Send this process's spans to `endpoint` (OTLP/gRPC); none if it is empty. `sampling`: None: all.

    The caller shuts the provider down before the process ends, which sends what is left.
    """
    if not endpoint:
        return None
    resource = Resource.create({"service.name": f"quire-{service}", "service.instance.id": process_id})
    sending = Sender(Exporter(resource, endpoint))
    provider = LightTracerProvider(sampling or Sampling(), sending)
    trace.set_tracer_provider(provider)
    return provider


def sampled_trace(span: Span) -> int:
    """Id of the span's trace; 0 if that is not sent in any case."""
    return int(span.request.trace_id, 16) if isinstance(span, LightSpan) and span.request.chosen else 0


def incoming(metadata: Metadata | None) -> Context:
    """The caller's span context out of a call's metadata; empty if it has none."""
    for key, value in metadata or ():
        if key == TRACEPARENT and isinstance(value, str) and _TRACEPARENT.fullmatch(value):
            return trace.set_span_in_context(Caller(value), Context())
    return Context()


def carried(span: Span) -> tuple[tuple[str, str], ...]:
    """Metadata that carries the span's context to the next process; none if nothing is traced."""
    value = written(span)
    return ((TRACEPARENT, value),) if value else ()


@contextmanager
def within(name: str, parent: Span) -> Iterator[Span]:
    """A span named `name` around a part of what `parent` does. Its errors are the parent's."""
    if not isinstance(parent, LightSpan):
        yield parent
        return
    span = parent.child(name)
    try:
        yield span
    finally:
        span.end()


@contextmanager
def calling(method: str, parent: Span, attempt: int) -> Iterator[Span]:
    """A span around a call to another process. `method`: as in "quire.Tokenizer/Generate".

    `attempt`: 1 for the first call; a further one is made when a process was lost, or the call was paused.
    """
    if not isinstance(parent, LightSpan):
        yield parent
        return
    attributes = {"rpc.method": method, "rpc.system.name": "grpc", "quire.attempt": attempt}
    span = parent.child(method, SpanKind.CLIENT, attributes)
    try:
        yield span
    except grpc.aio.AioRpcError as error:
        failed(span, error, error.code(), error.details() or "")
        raise
    finally:
        span.end()


def failed(span: Span, error: Exception, code: grpc.StatusCode | None, message: str = "") -> None:
    """Record an error in a span. `code`: the status that it means for a caller; None: it is unexpected."""
    if not span.is_recording():
        return
    span.record_exception(error)
    span.set_attribute("error.type", code.name if code else type(error).__name__)
    if code is None or code in FAULTS:
        text = message or str(error)
        span.set_status(SpanStatus(SpanStatusCode.ERROR, text[:MAX_ATTRIBUTE_LENGTH]))


class Waits:
    """How long somebody waits for tokens: for the first one, and from each to the next."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.longest = 0.0
        """Seconds."""
        self.since = clock()
        """When tokens came last, or the beginning."""
        self._clock = clock

    def came(self) -> float:
        """Tokens have come; the seconds since those before, or since the beginning."""
        now = self._clock()
        waited, self.since = now - self.since, now
        if waited > self.longest:
            self.longest = waited
        return waited

    def note(self, span: Span) -> None:
        """Set the longest wait as the span's attribute. One that goes on counts."""
        span.set_attribute(LONGEST_WAIT, round(max(self.longest, self._clock() - self.since), 6))


@asynccontextmanager
async def served(
    tracer: Tracer, name: str, context: Any, status_of: Callable[[Exception], Status | None]
) -> AsyncIterator[Span]:
    """A span named `name` around a call that a servicer serves.

    An error is recorded in the span, see `FAULTS`. If `status_of` knows a status for it, the call ends with
    that status; otherwise the error goes on.
    """
    span = tracer.start_span(name, context=incoming(context.invocation_metadata()), kind=SpanKind.SERVER)
    try:
        yield span
    except asyncio.CancelledError:
        left = context.time_remaining()
        if left is not None and left < LATE_SECONDS:
            span.set_status(SpanStatus(SpanStatusCode.ERROR, "it took longer than its deadline"))
        else:
            span.add_event("cancelled")  # by the caller, which has all that it wants
        raise
    except Exception as error:
        status = status_of(error)
        failed(span, error, status.code if status else None)
        if status is None:
            raise
        await context.abort(status.code, status.details, status.trailing)
    finally:
        span.end()
