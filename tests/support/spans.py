"""Spans as OpenTelemetry would export them, kept for a test."""

from types import ModuleType
from typing import TypeVar

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ops.runtime.light_spans import LightTracerProvider
from ops.runtime.trace_sampling import Sampling

Exporter = TypeVar("Exporter", bound=InMemorySpanExporter)


def exported_to(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, module: ModuleType, tracer: str = "tracer"
) -> Exporter:
    """`exporter`, which gets the spans of the module's tracer from now on. `tracer`: its name there."""
    provider = LightTracerProvider(Sampling(), Resource.create({}), SimpleSpanProcessor(exporter))
    monkeypatch.setattr(module, tracer, provider.get_tracer("test"))
    return exporter
