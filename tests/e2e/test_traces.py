"""One request is one trace through all four processes, as a real OTLP receiver sees it."""

import threading
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from ops.launcher.redis_server import RedisServer
from tests.support.deployment import Deployment, running

FOUR = {"quire-gateway", "quire-tokenizer", "quire-scheduler", "quire-worker"}


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Collects spans as (service name, span)."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self.changed = threading.Condition()

    def Export(self, request: Any, context: Any) -> Any:
        with self.changed:
            for resource in request.resource_spans:
                names = {item.key: item.value.string_value for item in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self.spans += [(names["service.name"], span) for span in scope.spans]
            self.changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def trace(self, trace_id: bytes, services: set[str], timeout: float = 60.0) -> dict[str, Any]:
        """The spans of one trace by service, once each of `services` has sent its own."""
        deadline = time.monotonic() + timeout
        with self.changed:
            while True:
                found = {name: span for name, span in self.spans if span.trace_id == trace_id}
                if services <= set(found):
                    return found
                assert self.changed.wait(deadline - time.monotonic()), f"only {sorted(found)} sent spans"


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    receiver.port = server.add_insecure_port("127.0.0.1:0")  # type: ignore[attr-defined]
    server.start()
    yield receiver
    server.stop(0).wait()


@pytest.fixture(scope="module")
def traced(
    receiver: Any, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    endpoint = f"http://127.0.0.1:{receiver.port}"
    yield from running(redis_server, tmp_path_factory.mktemp("traced"), QUIRE_OTLP_ENDPOINT=endpoint)


def ask(deployment: Deployment, trace_id: str, **fields: Any) -> httpx.Response:
    return httpx.post(
        f"{deployment.url}/v1/completions",
        json={
            "model": "quire-tiny",
            "prompt": "Once upon a time",
            "max_tokens": 8,
            "temperature": 0,
            **fields,
        },
        headers={"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"},
        timeout=60,
    )


def test_an_answer_is_one_trace(traced: Deployment, receiver: Receiver) -> None:
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert ask(traced, trace_id).status_code == 200
    spans = receiver.trace(bytes.fromhex(trace_id), FOUR)

    assert spans["quire-gateway"].parent_span_id.hex() == "00f067aa0ba902b7"
    assert spans["quire-tokenizer"].parent_span_id == spans["quire-gateway"].span_id
    assert spans["quire-scheduler"].parent_span_id == spans["quire-tokenizer"].span_id
    assert spans["quire-worker"].parent_span_id == spans["quire-scheduler"].span_id

    states = [event.name for event in spans["quire-scheduler"].events]
    assert states == ["WAITING", "PREFILL", "DECODE", "DONE"]

    everything = [span for _, span in receiver.spans if span.trace_id == bytes.fromhex(trace_id)]
    known = {span.span_id for span in everything} | {bytes.fromhex("00f067aa0ba902b7")}
    assert all(span.parent_span_id in known for span in everything), "an orphan"
    assert all(span.status.code != 2 for span in everything), "an error where there was none"


def test_worker_steps_link_to_the_requests_they_served(traced: Deployment, receiver: Receiver) -> None:
    trace_id = "5bf92f3577b34da6a3ce929d0e0e4736"
    assert ask(traced, trace_id).status_code == 200
    receiver.trace(bytes.fromhex(trace_id), FOUR)
    deadline = time.monotonic() + 60
    steps: list[Any] = []
    with receiver.changed:
        while len(steps) < 8:
            steps = [
                span
                for name, span in receiver.spans
                if name == "quire-worker" and any(link.trace_id.hex() == trace_id for link in span.links)
            ]
            if len(steps) < 8:
                assert receiver.changed.wait(deadline - time.monotonic()), f"only {len(steps)} steps"
    assert {step.name for step in steps} == {"worker.step"}


def test_an_error_shows_on_the_spans_it_passed(traced: Deployment, receiver: Receiver) -> None:
    trace_id = "6bf92f3577b34da6a3ce929d0e0e4736"
    assert ask(traced, trace_id, max_tokens=100_000).status_code == 400
    spans = receiver.trace(bytes.fromhex(trace_id), FOUR - {"quire-worker"})
    assert set(spans) == FOUR - {"quire-worker"}
    for span in spans.values():
        assert span.status.code == 2
    assert spans["quire-scheduler"].parent_span_id == spans["quire-tokenizer"].span_id
