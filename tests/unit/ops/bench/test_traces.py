"""How what traces cost is measured and told."""

import os
import random
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from ops.bench.traces import ALL, OFF, SWITCH, Switch, Turn, compared, interval, part_of, sink
from ops.launcher.redis_server import free_port


def test_each_traced_load_is_compared_with_those_around_it() -> None:
    """The machine becomes slower and slower, and tracing costs a hundredth."""
    turns = [
        Turn(
            (1000 - number) * (0.99 if number % 2 else 1),
            {"redis": 50.0, ALL: (100 + number) * (1.01 if number % 2 else 1)},
        )
        for number in range(41)
    ]
    found = compared(turns)
    assert found["untraced"] == {"tokens_per_second": 980, "cpu_us_per_request": {"redis": 50, ALL: 120}}
    traced, control = found["traced over untraced"], found["untraced over untraced"]
    assert (traced["number"], control["number"]) == (20, 10)
    assert (traced["tokens_per_second"]["median"], control["tokens_per_second"]["median"]) == (0.99, 1)
    medians = [
        {name: each["median"] for name, each in one["added_cpu_us_per_request"].items()}
        for one in (traced, control)
    ]
    assert medians == [{"redis": 0, ALL: 1.2}, {"redis": 0, ALL: 0}]
    assert part_of(traced, 120)["median"] == 0.01


def test_loads_that_lost_cores_are_left_out_unless_all_did() -> None:
    turns = [Turn(1000, {ALL: 100.0}) for _ in range(9)]
    turns[4] = Turn(10, {ALL: 900.0}, stolen=0.2)
    found = compared(turns)["traced over untraced"]
    assert (found["number"], found["tokens_per_second"]["95 %"]) == (2, [1, 1])
    assert found["added_cpu_us_per_request"][ALL]["95 %"] == [0, 0]
    assert compared([turn._replace(stolen=0.2) for turn in turns])["traced over untraced"]["number"] == 4


def test_cpu_time_is_held_against_a_yardstick() -> None:
    """The machine is at half its speed from time to time, and tracing costs a hundredth."""
    draw = random.Random(1)
    speeds = [draw.choice([1.0, 2.0]) for _ in range(41)]
    turns = [
        Turn(1000, {ALL: 100 * speed * (1.01 if number % 2 else 1)}, 0.01 * speed)
        for number, speed in enumerate(speeds)
    ]
    added = compared(turns)["traced over untraced"]["added_cpu_us_per_request"][ALL]
    assert added["median"] in (1, 2)
    assert added["95 %"] == [added["median"]] * 2


def test_the_median_lies_in_the_interval_nineteen_times_of_twenty() -> None:
    draw = random.Random(1)
    hits = 0
    for _ in range(2000):
        low, high = interval([draw.lognormvariate(0, 1) for _ in range(80)])
        hits += low <= 1 <= high
    assert 0.93 < hits / 2000 < 0.97


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_few_values_have_an_interval(number: int) -> None:
    values = [float(each) for each in range(number)]
    assert interval(values) == (0.0, number - 1)


def test_spans_are_counted() -> None:
    port = free_port()
    with sink(port) as taken, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = trace_service_pb2.ExportTraceServiceRequest()
        spans = request.resource_spans.add().scope_spans.add().spans
        spans.add()
        spans.add()
        trace_service_pb2_grpc.TraceServiceStub(channel).Export(request, timeout=60)
        assert taken.spans == 2


PROCESS = """import sys
from opentelemetry import trace
from opentelemetry.context import Context
from ops.runtime.telemetry import start_traces
from ops.runtime.trace_sampling import Sampling
provider = start_traces("test", "test-1", "http://127.0.0.1:1", Sampling(0.5, slow_seconds=5.0))
tracer = trace.get_tracer("test")
print("ready", flush=True)
for _ in sys.stdin:
    span = tracer.start_span("name", Context()).get_span_context()
    print("none" if not span.is_valid else "chosen" if span.trace_flags.sampled else "recorded", flush=True)
"""


def test_a_process_turns_its_traces_off_and_on(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS],
        env=os.environ | {"PYTHONPATH": str(SWITCH), "TRACES_SWITCH": str(tmp_path)},
        cwd=Path(__file__).parents[4],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        switch = Switch(tmp_path, {"test": process.pid, "redis": -1})
        for rate, kind in ((OFF, "none"), ("1", "chosen"), ("0", "recorded"), (OFF, "none"), ("1", "chosen")):
            switch.turn(rate)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{kind}\n"
    finally:
        process.kill()
        process.communicate()
