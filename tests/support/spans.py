"""Spans as OpenTelemetry's SDK has them, kept for a test."""

from types import ModuleType
from typing import Any, TypeVar

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, Status

from ops.runtime.light_spans import Caller, LightSpan, LightTracerProvider
from ops.runtime.trace_sampling import Sampling

Exporter = TypeVar("Exporter", bound=InMemorySpanExporter)


class Converted(SpanExporter):
    """Gives light spans to another exporter, as spans of the SDK."""

    def __init__(self, then: SpanExporter) -> None:
        self._then = then

    def export(self, spans: Any) -> SpanExportResult:
        return self._then.export([of_sdk(span) for span in spans])


def of_sdk(span: LightSpan) -> ReadableSpan:
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=parent_of(span),
        resource=Resource.get_empty(),
        attributes=_frozen(span.attributes),
        events=[Event(name, _frozen(attributes or {}), at) for name, attributes, at in span.events],
        links=tuple(span.links),
        kind=span.kind,
        status=span.status or Status(),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.request.scope,
    )


def parent_of(span: LightSpan) -> SpanContext | None:
    """The context of the span that it is below."""
    if isinstance(parent := span.parent, LightSpan):
        return parent.context
    return Caller(parent).get_span_context() if parent else None


def _frozen(attributes: Any) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in attributes.items()}


def exported_to(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, module: ModuleType, tracer: str = "tracer"
) -> Exporter:
    """`exporter`, which gets the spans of the module's tracer from now on. `tracer`: its name there."""
    provider = LightTracerProvider(Sampling(), SimpleSpanProcessor(Converted(exporter)))
    monkeypatch.setattr(module, tracer, provider.get_tracer("test"))
    return exporter
