"""What traces cost: turned off and on in turns, in the processes of one deployment.

    python -m ops.bench.traces [--rate 0.1] [--turns 201] [--requests 64] [--users 32]

Two equal deployments differ by 2.6 %, far more than traces cost. So the same processes serve short loads,
of which every second one is traced (`switch/sitecustomize.py`). Each traced load is compared with the mean
of the untraced ones before and after it. What counts is the median of these ratios, with its interval of
95 %: of the CPU time of all processes per token, and of the tokens a second. Untraced loads that are
compared with each other in the same manner show what can be told apart. Spans go to a receiver in this
process. Writes ops/bench/results/traces.json. Some nine minutes.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ops.bench.load.client import CompletionClient
from ops.bench.load.load import closed_loop
from ops.bench.load.processes import Running, running
from ops.bench.load.workload import Workload
from ops.bench.record import write
from ops.launcher.redis_server import free_port

SWITCH = Path(__file__).with_name("switch")
OFF = "off"
SLOW_SECONDS = "5.0"
"""What is slower is traced in any case, as the default has it."""
ASK_SECONDS = 0.5
"""Time between two signals to a process that has not turned its traces yet."""
SETTLE_SECONDS = 60.0


class Sink:
    """Takes spans and counts them."""

    def __init__(self) -> None:
        self.spans = 0

    def export(self, request: ExportTraceServiceRequest, context: Any) -> bytes:
        for resource in request.resource_spans:
            self.spans += sum(len(scope.spans) for scope in resource.scope_spans)
        return b""  # an empty response


@contextlib.contextmanager
def sink(port: int) -> Iterator[Sink]:
    """A receiver that listens at this port of loopback. No process may be forked while it runs."""
    taken, server = Sink(), grpc.server(futures.ThreadPoolExecutor(2))
    method = grpc.unary_unary_rpc_method_handler(taken.export, ExportTraceServiceRequest.FromString)
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": method}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield taken
    finally:
        server.stop(0).wait()


class Turn(NamedTuple):
    """One load."""

    tokens_per_second: float
    cpu_us_per_token: float
    """CPU time of all processes, microseconds."""


class Switch:
    """Turns the traces of all processes of a deployment off and on."""

    def __init__(self, folder: Path, processes: Mapping[str, int]) -> None:
        """`processes`: ids by name."""
        self._folder = folder
        self._pids = [pid for name, pid in processes.items() if name != "redis"]

    def turn(self, rate: str) -> None:
        """Return when each process has done it. Raises `TimeoutError`. `rate`: may be `OFF`."""
        (self._folder / "rate").write_text(rate)
        deadline, asked = time.monotonic() + SETTLE_SECONDS, 0.0
        while others := [pid for pid in self._pids if self._rate_of(pid) != rate]:
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(f"not all processes have turned their traces to {rate}")
            if now > asked + ASK_SECONDS:  # one that comes right before a system call waits for its end
                asked = now
                for pid in others:
                    os.kill(pid, signal.SIGUSR2)
            time.sleep(0.002)

    def _rate_of(self, pid: int) -> str:
        file = self._folder / str(pid)
        return file.read_text() if file.exists() else ""


def load(deployment: Running, requests: int, users: int, seed: int) -> Turn:
    """Put a load on a deployment. Raises `RuntimeError` if an answer failed."""
    workload = Workload(prompt_lengths=(64,), output_lengths=(64, 64))
    conversations = workload.conversations(requests, seed)  # others in each turn: no prompt is cached
    client = CompletionClient(deployment.url, deployment.model)
    before = sum(deployment.cpu_seconds().values())
    answers, seconds = asyncio.run(closed_loop(client, conversations, users))
    used = sum(deployment.cpu_seconds().values()) - before
    if failed := [answer.error for answer in answers if answer.error]:
        raise RuntimeError(f"{len(failed)} answers failed: {failed[0]}")
    tokens = requests * 64
    return Turn(tokens / seconds, used / tokens * 1e6)


def compared(turns: Sequence[Turn]) -> dict[str, Any]:
    """Ratios to what is untraced. `turns`: untraced, traced, untraced and so on; both ends are untraced."""
    bare, traced = turns[::2], turns[1::2]
    return {
        "untraced": _medians(bare),
        "traced": _medians(traced),
        "traced over untraced": _ratios(traced, bare),
        "untraced over untraced": _ratios(bare[1::2], bare[::2]),
    }


def _medians(turns: Sequence[Turn]) -> dict[str, float]:
    return {
        figure: round(statistics.median(getattr(turn, figure) for turn in turns), 1)
        for figure in Turn._fields
    }


def _ratios(turns: Sequence[Turn], around: Sequence[Turn]) -> dict[str, Any]:
    """Of each turn to the mean of the two around it."""
    found: dict[str, Any] = {}
    for figure in Turn._fields:
        values, others = ([getattr(turn, figure) for turn in each] for each in (turns, around))
        pairs = zip(values, itertools.pairwise(others), strict=False)
        ratios = [2 * value / (before + after) for value, (before, after) in pairs]
        low, high = interval(ratios)
        median = round(statistics.median(ratios), 4)
        found[figure] = {"median": median, "95 %": [round(low, 4), round(high, 4)], "number": len(ratios)}
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The median's interval of 95 %, whatever the distribution of the values.

    The number of values below the median has a binomial distribution: of n, n/2 ± 1.96 √n / 2.
    """
    ordered = sorted(values)
    off = min(len(ordered) // 2, int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5))
    off = max(0, off)
    return ordered[off], ordered[-1 - off]


def run(rate: float, number: int, requests: int, users: int, seed: int) -> dict[str, Any]:
    """Start a deployment and put `number` loads on it, of which every second one is traced."""
    turns: list[Turn] = []
    port = free_port()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {
            "QUIRE_KV_MEMORY": "256MiB",
            "QUIRE_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "QUIRE_TRACE_SLOW_SECONDS": SLOW_SECONDS,
            "PYTHONPATH": str(SWITCH),
            "TRACES_SWITCH": str(folder),
        }
        deployment = stack.enter_context(running(**settings))
        processes = {name: process.pid for name, process in deployment.deployment.processes.items()}
        switch, taken = Switch(folder, processes), stack.enter_context(sink(port))
        load(deployment, 4 * users, users, seed)
        switch.turn(OFF)
        load(deployment, users, users, seed + 1)
        first = taken.spans
        for turn in range(number + (number + 1) % 2):
            way = f"{rate:g}" if turn % 2 else OFF
            switch.turn(way)
            turns.append(load(deployment, requests, users, seed + 2 + turn))
            print(f"{turn + 1}: {way}: {turns[-1].cpu_us_per_token:.1f} µs of CPU a token", flush=True)
        if taken.spans == first:
            raise RuntimeError("no span came: nothing was compared")
        spans = taken.spans - first
    terms = {"rate": rate, "turns": len(turns), "requests": requests, "users": users, "spans": spans}
    return terms | compared(turns)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=0.1, help="part of the requests whose traces are sent")
    parser.add_argument("--turns", type=int, default=201)
    parser.add_argument("--requests", type=int, default=64, help="of each load")
    parser.add_argument("--users", type=int, default=32, help="requests at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("ops/bench/results/traces.json"))
    options = parser.parse_args()
    results = run(options.rate, options.turns, options.requests, options.users, options.seed)
    write(options.out, "traces", options.seed, results)
    for name, found in results.items():
        print(f"{name:<24} {found}")


if __name__ == "__main__":
    main()
