"""Light spans as messages of OTLP, OpenTelemetry's protocol.

The SDK's own way there is by two copies of each span, which take 60 µs. The rest is the SDK's exporter: the
connection, times and retries.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, SpanFlags
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.proto.trace.v1.trace_pb2 import Status as StatusMessage
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue

from ops.runtime.address import is_loopback
from ops.runtime.light_spans import LightSpan

MAX_ATTRIBUTE_LENGTH = 4096
"""Characters of an attribute of a span, of its events and of its status. A stack trace may need them."""
LAST_SECONDS = 2.0
"""Time in which a process that ends sends the spans that are left. They are lost if the collector is away."""
_MOST_ATTRIBUTES = SpanLimits().max_span_attributes
"""Of a span; None: any number. The oldest are left out."""
_KINDS = {
    SpanKind.INTERNAL: Message.SPAN_KIND_INTERNAL,
    SpanKind.SERVER: Message.SPAN_KIND_SERVER,
    SpanKind.CLIENT: Message.SPAN_KIND_CLIENT,
    SpanKind.PRODUCER: Message.SPAN_KIND_PRODUCER,
    SpanKind.CONSUMER: Message.SPAN_KIND_CONSUMER,
}
_CODES = {
    StatusCode.UNSET: StatusMessage.STATUS_CODE_UNSET,
    StatusCode.OK: StatusMessage.STATUS_CODE_OK,
    StatusCode.ERROR: StatusMessage.STATUS_CODE_ERROR,
}
_KNOWN = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE = _KNOWN | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


class Exporter(OTLPSpanExporter):
    """Sends light spans of one process."""

    def __init__(self, resource: Resource, endpoint: str) -> None:
        host = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").hostname
        # The environment's proxies are not for loopback.
        options: Any = (("grpc.enable_http_proxy", 0),) if is_loopback(host or "") else None
        insecure = not endpoint.startswith("https")
        super().__init__(endpoint=endpoint, insecure=insecure, channel_options=options)
        self._resource = resource

    def _translate_data(self, data: Sequence[Any]) -> ExportTraceServiceRequest:
        return encoded(data, self._resource)


class Sender(BatchSpanProcessor):
    """Gives spans to an exporter in batches, and does not wait for one that cannot send when it ends."""

    def shutdown(self) -> None:
        impatient = threading.Timer(LAST_SECONDS, self.span_exporter.shutdown)
        impatient.daemon = True
        impatient.start()
        super().shutdown()  # type: ignore[no-untyped-call]
        impatient.cancel()


def encoded(spans: Iterable[LightSpan], resource: Resource) -> ExportTraceServiceRequest:
    """A message with all spans, each below the module that made it."""
    message = ExportTraceServiceRequest()
    ours = message.resource_spans.add(schema_url=resource.schema_url)
    _fill(ours.resource.attributes, resource.attributes)
    scopes: dict[str, ScopeSpans] = {}
    for span in spans:
        scope = span.request.scope
        if (of := scopes.get(scope.name)) is None:
            of = scopes[scope.name] = ours.scope_spans.add(schema_url=scope.schema_url)
            of.scope.name, of.scope.version = scope.name, scope.version or ""
        _write(of.spans.add(), span)
    return message


def _write(message: Message, span: LightSpan) -> None:
    message.trace_id, message.span_id = bytes.fromhex(span.request.trace_id), span.span_id.to_bytes(8)
    message.flags = _KNOWN
    if isinstance(parent := span.parent, LightSpan):
        message.parent_span_id = parent.span_id.to_bytes(8)
    elif parent:
        message.parent_span_id, message.flags = bytes.fromhex(parent[36:52]), _REMOTE
    message.name, message.kind = span.name, _KINDS[span.kind]
    message.start_time_unix_nano, message.end_time_unix_nano = span.start_time, span.end_time or 0
    message.dropped_attributes_count = _fill(message.attributes, span.attributes)
    for name, attributes, at in span.events:
        event = message.events.add(name=name, time_unix_nano=at)
        event.dropped_attributes_count = _fill(event.attributes, attributes or {})
    for link in span.links:
        context = link.context
        pair = {"trace_id": context.trace_id.to_bytes(16), "span_id": context.span_id.to_bytes(8)}
        _fill(message.links.add(**pair, flags=_flags(context)).attributes, link.attributes or {})
    message.status.SetInParent()
    if span.status is not None:
        message.status.code = _CODES[span.status.status_code]
        message.status.message = span.status.description or ""


def _flags(context: SpanContext) -> int:
    return _REMOTE if context.is_remote else _KNOWN


def _fill(pairs: Any, attributes: Mapping[str, AttributeValue]) -> int:
    """Add attributes to `pairs`, a repeated field of `KeyValue`. Returns how many were left out."""
    items: Iterable[tuple[str, AttributeValue]] = attributes.items()
    left_out = 0
    if _MOST_ATTRIBUTES is not None and len(attributes) > _MOST_ATTRIBUTES:
        left_out = len(attributes) - _MOST_ATTRIBUTES
        items = list(items)[left_out:]
    for key, value in items:
        pair: KeyValue = pairs.add()
        pair.key = key
        _put(pair.value, value)
    return left_out


def _put(message: AnyValue, value: Any) -> None:
    kind = type(value)
    if kind is str:
        message.string_value = value[:MAX_ATTRIBUTE_LENGTH]
    elif kind is bool:
        message.bool_value = value
    elif kind is int and value.bit_length() < 64:
        message.int_value = value
    elif kind is float:
        message.double_value = value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        message.array_value.SetInParent()
        for each in value:
            _put(message.array_value.values.add(), each)
    else:
        message.string_value = str(value)[:MAX_ATTRIBUTE_LENGTH]
