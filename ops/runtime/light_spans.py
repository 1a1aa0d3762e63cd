"""Spans that cost next to nothing until it is known that they are sent.

With a rate of a tenth, nine spans of ten are made to be dropped when their request has ended well. One of
OpenTelemetry's SDK takes 30 µs, and 2.5 for each attribute: its checks and copies are made at once. These
spans keep what they are given. What is sent is checked, cut and copied once, into a message: `otlp.py`.
"""

import random
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.util.types import Attributes, AttributeValue

from ops.runtime.trace_sampling import Request, Sampling

_CHOSEN, _OTHER = TraceFlags(TraceFlags.SAMPLED), TraceFlags(TraceFlags.DEFAULT)
_ODD = frozenset("13579bdf")


class LightSpan(trace.Span):
    """A span that is recorded."""

    __slots__ = (
        *("_span_id", "attributes", "complete", "end_time", "events", "kind", "links", "name"),
        *("parent", "request", "start_time", "status"),
    )

    def __init__(
        self,
        name: str,
        parent: "LightSpan | str",
        request: "Request[LightSpan]",
        kind: SpanKind,
        attributes: dict[str, AttributeValue],
        links: Iterable[Link],
        start_time: int | None,
    ) -> None:
        """`parent`: its `traceparent` if it is in another process; empty if there is none. `attributes`:
        become its own. `start_time`: nanoseconds; None: now."""
        self.name, self.kind, self.links = name, kind, links
        self.attributes = attributes
        self.complete: Callable[[LightSpan], None] | None = None
        """Gives it more attributes and spans below it, when it has ended and is sent: most never are."""
        self.events: Sequence[tuple[str, Attributes, int]] = ()
        """Name, attributes and time in nanoseconds of each."""
        self.status: Status | None = None
        self.parent, self.request = parent, request
        self.start_time = time.time_ns() if start_time is None else start_time
        self.end_time: int | None = None
        self._span_id = 0
        request.begin()

    def child(
        self,
        name: str,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: dict[str, Any] | None = None,
        links: Iterable[Link] = (),
        start_time: int | None = None,
    ) -> "LightSpan":
        """A span below this one, see `__init__`. What OpenTelemetry's API has for that takes three times as
        long."""
        own = {} if attributes is None else attributes
        return LightSpan(name, self, self.request, kind, own, links, start_time)

    @property
    def span_id(self) -> int:
        """Made when it is asked for: most spans are neither sent nor called from."""
        if not self._span_id:
            self._span_id = random.getrandbits(64) or 1
        return self._span_id

    @property
    def traceparent(self) -> str:
        """Its context as W3C Trace Context writes it."""
        return f"00-{self.request.trace_id}-{self.span_id:016x}-0{self.request.chosen:d}"

    @property
    def context(self) -> SpanContext:
        """Of a span that is sent: processors of the SDK leave out others."""
        return SpanContext(int(self.request.trace_id, 16), self.span_id, False, _CHOSEN)

    @property
    def nanoseconds(self) -> int:
        """From its begin to its end; 0 if it has not ended."""
        return 0 if self.end_time is None else self.end_time - self.start_time

    def get_span_context(self) -> SpanContext:
        flags = _CHOSEN if self.request.chosen else _OTHER
        return SpanContext(int(self.request.trace_id, 16), self.span_id, False, flags)

    def is_recording(self) -> bool:
        return self.end_time is None

    def update_name(self, name: str) -> None:
        self.name = name

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        if self.end_time is None:
            self.attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        if self.end_time is None:
            self.attributes.update(attributes)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        if self.end_time is None:
            event = name, attributes, time.time_ns() if timestamp is None else timestamp
            self.events = (*self.events, event)

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        self.links = (*self.links, Link(context, attributes))

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """One that says OK stays."""
        given = status if isinstance(status, Status) else Status(status, description)
        settled = self.status is not None and self.status.status_code is StatusCode.OK
        if not (settled or given.is_unset) and self.end_time is None:
            self.status = given

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        kind = type(exception)
        name = (
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )
        facts: dict[str, Any] = {"exception.type": name, "exception.message": str(exception)}
        facts["exception.stacktrace"] = "".join(traceback.format_exception(exception))
        facts["exception.escaped"] = str(escaped)
        self.add_event("exception", {**facts, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        if self.end_time is None:
            self.end_time = time.time_ns() if end_time is None else end_time
            self.request.end(self)


class Caller(NonRecordingSpan):
    """A span of another process. It stays the text that it came as until somebody asks for more."""

    def __init__(self, traceparent: str) -> None:
        """`traceparent`: a well-formed one."""
        self.traceparent = traceparent

    def get_span_context(self) -> SpanContext:
        _, trace_id, span_id, flags = (int(part, 16) for part in self.traceparent.split("-"))
        return SpanContext(trace_id, span_id, True, TraceFlags(flags))


def is_sampled(traceparent: str) -> bool:
    """Whether its trace is sent in any case, as the lowest of its flags says. False if it is empty."""
    return traceparent[-1:] in _ODD


def written(span: trace.Span) -> str:
    """A span's context as W3C Trace Context writes it; empty if it is not valid."""
    if isinstance(span, LightSpan | Caller):
        return span.traceparent
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


class LightTracer(trace.Tracer):
    """Makes the spans of one module."""

    def __init__(self, provider: "LightTracerProvider", scope: InstrumentationScope) -> None:
        self._provider, self._scope = provider, scope

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> trace.Span:
        above, own = trace.get_current_span(context), {**attributes} if attributes else {}
        if isinstance(above, LightSpan):
            return above.child(name, kind, own, links or (), start_time)
        sampling, caller = self._provider.sampling, written(above)
        if caller:
            trace_id, chosen = caller[3:35], is_sampled(caller)
        else:
            number = random.getrandbits(128) or 1
            trace_id, chosen = f"{number:032x}", sampling.chooses(number, attributes)
        if not (chosen or sampling.slow_seconds):  # the next process learns that nobody wants it
            span_id = random.getrandbits(64) or 1
            return NonRecordingSpan(SpanContext(int(trace_id, 16), span_id, False, _OTHER))
        request = Request(trace_id, self._scope, self._provider.send, chosen, sampling.slow_seconds)
        return LightSpan(name, caller, request, kind, own, links or (), start_time)

    # Its decorator is the library's own, which has no name that is public.
    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, name: str, *arguments: Any, **options: Any
    ) -> Iterator[trace.Span]:
        with trace.use_span(self.start_span(name, *arguments, **options), end_on_exit=True) as span:
            yield span


class LightTracerProvider(trace.TracerProvider):
    """Gives what is sent to a processor of OpenTelemetry's SDK."""

    def __init__(self, sampling: Sampling, then: SpanProcessor) -> None:
        """`then`: gets the light spans that are sent, when they have ended."""
        self.sampling = sampling
        self._then = then

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> trace.Tracer:
        scope = InstrumentationScope(instrumenting_module_name, instrumenting_library_version, schema_url)
        return LightTracer(self, scope)

    def send(self, span: LightSpan) -> None:
        if span.complete is not None:
            complete, span.complete = span.complete, None
            complete(span)
        self._then.on_end(span)  # type: ignore[arg-type]

    def force_flush(self) -> bool:
        return self._then.force_flush()

    def shutdown(self) -> None:
        self._then.shutdown()
