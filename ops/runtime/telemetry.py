"""Traces: OpenTelemetry spans of every process, carried between them as W3C trace context.

Without `QUIRE_OTLP_ENDPOINT` no provider is set and every call here costs next to nothing.
"""

from collections.abc import Sequence

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

Metadata = Sequence[tuple[str, str | bytes]]


def start_traces(service: str, process_id: str, endpoint: str) -> TracerProvider | None:
    """Send this process's spans to `endpoint` (OTLP/gRPC); none if it is empty.

    The caller shuts the provider down before the process ends, which sends what is left.
    """
    if not endpoint:
        return None
    resource = Resource.create({"service.name": f"quire-{service}", "service.instance.id": process_id})
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https"))
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
    trace.set_tracer_provider(provider)
    return provider


def outgoing(context: Context | None = None) -> tuple[tuple[str, str], ...]:
    """Metadata that carries the current (or the given) span's context to the next process."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=context)
    return tuple(carrier.items())


def incoming(metadata: Metadata | None) -> Context:
    """The caller's span context out of a call's metadata; empty if it has none."""
    carrier = {key: value for key, value in metadata or () if isinstance(value, str)}
    return propagate.extract(carrier)
