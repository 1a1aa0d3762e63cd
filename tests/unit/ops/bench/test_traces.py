"""How what traces cost is told."""

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from ops.bench.traces import UNTRACED, WAYS, Turn, compared, sink
from ops.launcher.redis_server import free_port


def test_each_round_is_compared_with_itself() -> None:
    """The machine becomes slower and slower; what counts is the ratio within a round."""
    bare = [Turn(1000, 100), Turn(500, 200), Turn(250, 400)]
    traced = [Turn(990, 101), Turn(450, 220), Turn(245, 404)]
    found = compared({UNTRACED: bare, "all": traced})
    assert found[UNTRACED] == {"tokens_per_second": 500, "cpu_us_per_token": 200}
    assert found["all"] == {
        **{"tokens_per_second": 450, "cpu_us_per_token": 220},
        **{"tokens_ratio": 0.98, "cpu_ratio": 1.01},
    }


def test_spans_are_counted() -> None:
    port = free_port()
    with sink(port) as taken, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = trace_service_pb2.ExportTraceServiceRequest()
        spans = request.resource_spans.add().scope_spans.add().spans
        spans.add()
        spans.add()
        trace_service_pb2_grpc.TraceServiceStub(channel).Export(request, timeout=60)
        assert taken.spans == 2


def test_all_but_one_are_traced() -> None:
    assert [way for way, settings in WAYS.items() if not settings] == [UNTRACED]
