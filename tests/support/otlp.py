"""An OTLP receiver for tests, and a trace as text."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

Trace = list[tuple[str, Any]]
"""Spans, each with the name of its service; in the order of their beginnings."""


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Collects spans as (service name, span)."""

    def __init__(self) -> None:
        self.spans: Trace = []
        self.changed = threading.Condition()
        self.port = 0

    def Export(self, request: Any, context: Any) -> Any:
        with self.changed:
            for resource in request.resource_spans:
                names = {item.key: item.value.string_value for item in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self.spans += [(names["service.name"], span) for span in scope.spans]
            self.changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def trace(self, trace_id: str, complete: Callable[[Trace], bool], timeout: float = 60.0) -> Trace:
        """The spans of one trace, as soon as it is complete."""
        deadline, wanted = time.monotonic() + timeout, bytes.fromhex(trace_id)
        with self.changed:
            while True:
                found = [(service, span) for service, span in self.spans if span.trace_id == wanted]
                found.sort(key=lambda each: each[1].start_time_unix_nano)
                if complete(found):
                    return found
                left = deadline - time.monotonic()
                assert self.changed.wait(max(0.0, left)), (
                    f"only {[(name, span.name) for name, span in found]}"
                )


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that runs at `Receiver.port`."""
    receiver = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    receiver.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield receiver
    server.stop(0).wait()


def attributes_of(thing: Any) -> dict[str, Any]:
    """Attributes of a span or an event."""
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in thing.attributes}


def called(trace: Trace, name: str) -> list[Any]:
    """The trace's spans of this name."""
    return [span for _, span in trace if span.name == name]


def seconds_of(span: Any) -> float:
    return float(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


def drawn(trace: Trace, shown: tuple[str, ...], most_alike: int = 3) -> str:
    """The trace as text: a line for each span and event, with its begin and length in ms.

    `shown`: names of attributes. `most_alike`: of siblings of one name in a row, those that are shown.
    """
    begin = min(span.start_time_unix_nano for _, span in trace)
    known = {span.span_id for _, span in trace}
    below: dict[bytes, list[Any]] = {}
    for _, span in trace:
        below.setdefault(span.parent_span_id if span.parent_span_id in known else b"", []).append(span)
    lines: list[str] = []

    def line(at: int, length: str, depth: int, name: str, thing: Any) -> None:
        facts = attributes_of(thing)
        told = "  ".join(f"{key.split('.', 1)[1]}={_short(facts[key])}" for key in shown if key in facts)
        lines.append(f"{(at - begin) / 1e6:7.0f} {length:>7}  {'  ' * depth}{name}  {told}".rstrip())

    def draw(span: Any, depth: int) -> None:
        line(span.start_time_unix_nano, f"{seconds_of(span) * 1e3:.0f}", depth, span.name, span)
        if span.status.code == 2:
            lines.append(f"{'':17}{'  ' * depth}  ! {span.status.message}")
        for event in span.events:
            if event.name != "exception":
                line(event.time_unix_nano, "", depth + 1, f"* {event.name}", event)
        alike = 0
        children = below.get(span.span_id, [])
        for number, child in enumerate(children):
            alike = alike + 1 if number and children[number - 1].name == child.name else 1
            if alike <= most_alike:
                draw(child, depth + 1)
            elif number + 1 == len(children) or children[number + 1].name != child.name:
                lines.append(f"{'':17}{'  ' * depth}  … and {alike - most_alike} more")

    for root in below[b""]:
        draw(root, 0)
    return "\n".join(lines) + "\n"


def _short(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
