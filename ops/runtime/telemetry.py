"""Traces: OpenTelemetry spans of every process, carried between them as W3C trace context.

Without `QUIRE_OTLP_ENDPOINT` no provider is set and every call here costs next to nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Tracer
from opentelemetry.trace import Status as SpanStatus
from opentelemetry.trace import StatusCode as SpanStatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from proto.rpc.call import Status

MAX_ATTRIBUTE_LENGTH = 4096
"""Characters of an attribute of a span, of its events and of its status. A stack trace may need them."""

# Trace context alone: baggage is the client's, and nothing here reads it.
_propagator = TraceContextTextMapPropagator()

Metadata = Sequence[tuple[str, str | bytes]]


def start_traces(service: str, process_id: str, endpoint: str) -> TracerProvider | None:
    """Send this process's spans to `endpoint` (OTLP/gRPC); none if it is empty.

    The caller shuts the provider down before the process ends, which sends what is left.
    """
    if not endpoint:
        return None
    resource = Resource.create({"service.name": f"quire-{service}", "service.instance.id": process_id})
    limits = SpanLimits(max_attribute_length=MAX_ATTRIBUTE_LENGTH)
    provider = TracerProvider(resource=resource, span_limits=limits)
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https"))
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
    trace.set_tracer_provider(provider)
    return provider


def outgoing(context: Context | None = None) -> tuple[tuple[str, str], ...]:
    """Metadata that carries the current (or the given) span's context to the next process."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context=context)
    return tuple(carrier.items())


def incoming(metadata: Metadata | None) -> Context:
    """The caller's span context out of a call's metadata; empty if it has none."""
    carrier = {key: value for key, value in metadata or () if isinstance(value, str)}
    return _propagator.extract(carrier, Context())


@asynccontextmanager
async def served(
    tracer: Tracer, name: str, context: Any, status_of: Callable[[Exception], Status | None]
) -> AsyncIterator[Span]:
    """A span named `name` around a call that a servicer serves.

    An error is recorded in the span. If `status_of` knows a status for it, the call ends with that status;
    otherwise the error goes on.
    """
    span = tracer.start_span(name, context=incoming(context.invocation_metadata()), kind=SpanKind.SERVER)
    try:
        yield span
    except asyncio.CancelledError:
        span.set_status(SpanStatus(SpanStatusCode.ERROR, "cancelled"))
        raise
    except Exception as error:
        span.record_exception(error)
        span.set_status(SpanStatus(SpanStatusCode.ERROR, str(error)[:MAX_ATTRIBUTE_LENGTH]))
        status = status_of(error)
        if status is None:
            raise
        await context.abort(status.code, status.details, status.trailing)
    finally:
        span.end()
