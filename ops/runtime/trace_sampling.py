"""Which traces are sent: a part of all, those of chosen tenants, and of the rest what failed or was slow.

The gateway decides for a trace that begins there. Every other process follows its caller, whose decision is
in the `traceparent`. Of a trace that is not chosen each process still records its own spans. It sends them if
one of them failed, or if somebody waited too long for a token. No process asks another for that, because who
waits for a process waits at least as long: what is slow in one is sent by all from the gateway to that one.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState
from opentelemetry.util.types import Attributes

TENANT = "quire.tenant"
"""Attribute of a request's span: whose API key it came with."""
LONGEST_WAIT = "quire.longest_wait_seconds"
"""Attribute of a span: the longest time that passed without a token, the time to the first one included."""
MAX_HELD = 300
"""Spans that a process holds of one request while it is not known whether they are sent."""


@dataclass(frozen=True)
class Sampling:
    """Which traces are sent."""

    rate: float = 1.0
    """Part of the traces that begin in this process, 0 to 1."""
    tenants: frozenset[str] = frozenset()
    """Whose requests are all traced."""
    slow_seconds: float = 0.0
    """Of other requests, those that waited this long for a token are sent, and those that failed; 0: none."""


class RequestSampler(Sampler):
    """Follows the caller; decides by rate and tenant if there is none."""

    def __init__(self, sampling: Sampling) -> None:
        self._tenants = sampling.tenants
        self._bound = round(sampling.rate * 2**64)
        self._otherwise = Decision.RECORD_ONLY if sampling.slow_seconds else Decision.DROP

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        parent = trace.get_current_span(parent_context).get_span_context()
        if parent.is_valid:
            chosen = parent.trace_flags.sampled
        else:
            # The last 64 bits are random, as every process of a trace and every collector takes them to be.
            chosen = trace_id % 2**64 < self._bound or (attributes or {}).get(TENANT) in self._tenants
        return SamplingResult(Decision.RECORD_AND_SAMPLE if chosen else self._otherwise, attributes)

    def get_description(self) -> str:
        return "RequestSampler"


@dataclass
class _Request:
    """The spans that this process has of one request that was not chosen."""

    under_way: int = 0
    ended: list[ReadableSpan] = field(default_factory=list)
    failed: bool = False
    waits: list[float] = field(default_factory=list)


class KeptIfFaulty(SpanProcessor):
    """Hands on spans that were chosen at once, and others when their request turns out to be worth it."""

    def __init__(self, then: SpanProcessor, slow_seconds: float) -> None:
        """`then`: gets the spans that are sent."""
        self._then, self._slow_seconds = then, slow_seconds
        self._requests: dict[int, _Request] = {}
        """By the id of each span under way."""
        self._lock = threading.Lock()  # a worker begins spans in one thread and ends them in another

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        context, parent = span.get_span_context(), span.parent
        if context is None or context.trace_flags.sampled:
            return
        with self._lock:
            request = None if parent is None or parent.is_remote else self._requests.get(parent.span_id)
            request = self._requests[context.span_id] = request or _Request()
            request.under_way += 1

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is None or context.trace_flags.sampled:
            self._then.on_end(span)
            return
        with self._lock:
            request = self._requests.pop(context.span_id, None)
            if request is None:
                return
            self._note(request, span)
            request.under_way -= 1
            if request.under_way or not self._is_worth_it(request, span):
                return
        for each in request.ended:
            self._then.on_end(_chosen(each))

    def shutdown(self) -> None:
        self._then.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._then.force_flush(timeout_millis)

    def _note(self, request: _Request, span: ReadableSpan) -> None:
        request.failed |= span.status.status_code is StatusCode.ERROR
        wait = (span.attributes or {}).get(LONGEST_WAIT)
        if isinstance(wait, float):
            request.waits.append(wait)
        if len(request.ended) < MAX_HELD:
            request.ended.append(span)

    def _is_worth_it(self, request: _Request, last: ReadableSpan) -> bool:
        """`last`: the span that ended last. What has no tokens was waited for as long as it took."""
        waited = max(request.waits, default=((last.end_time or 0) - (last.start_time or 0)) / 1e9)
        return request.failed or waited >= self._slow_seconds


def _chosen(span: ReadableSpan) -> ReadableSpan:
    """The span as if its trace had been chosen: exporters leave out others."""
    old = span.get_span_context()
    assert old is not None
    flags = TraceFlags(old.trace_flags | TraceFlags.SAMPLED)
    return ReadableSpan(
        name=span.name,
        context=SpanContext(old.trace_id, old.span_id, old.is_remote, flags, old.trace_state),
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=span.events,
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )
