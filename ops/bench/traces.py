"""What traces cost: a deployment without them beside others with them, under the same load in turns.

    python -m ops.bench.traces [--rounds 7] [--requests 96] [--users 32]

All of them run at once, and one at a time has a load; the order changes with every round. What counts is the
median over the rounds of traced / untraced: of the tokens a second, and of the CPU time of all processes per
token. Spans go to a receiver in this process. Writes ops/bench/results/traces.json. Some four minutes.
"""

import argparse
import asyncio
import contextlib
import statistics
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

UNTRACED = "untraced"
WAYS: Mapping[str, Mapping[str, str]] = {
    UNTRACED: {},
    "a tenth, and what is slow or fails": {"QUIRE_TRACE_RATE": "0.1"},
    "a tenth": {"QUIRE_TRACE_RATE": "0.1", "QUIRE_TRACE_SLOW_SECONDS": "0"},
    "all": {"QUIRE_TRACE_RATE": "1"},
}
"""What is compared, with its settings."""


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
    """One load on one deployment."""

    tokens_per_second: float
    cpu_us_per_token: float
    """CPU time of all processes, microseconds."""


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


def compared(turns: Mapping[str, Sequence[Turn]]) -> dict[str, Any]:
    """Medians over the rounds: of each way, and of its ratio to `UNTRACED` within a round."""
    found: dict[str, Any] = {}
    for way, its in turns.items():
        found[way] = {
            "tokens_per_second": round(statistics.median(turn.tokens_per_second for turn in its), 1),
            "cpu_us_per_token": round(statistics.median(turn.cpu_us_per_token for turn in its), 1),
        }
        if way != UNTRACED:
            pairs = list(zip(its, turns[UNTRACED], strict=True))
            found[way] |= {
                "tokens_ratio": _ratio(its.tokens_per_second / bare.tokens_per_second for its, bare in pairs),
                "cpu_ratio": _ratio(its.cpu_us_per_token / bare.cpu_us_per_token for its, bare in pairs),
            }
    return found


def _ratio(ratios: Iterator[float]) -> float:
    return round(statistics.median(ratios), 4)


def run(rounds: int, requests: int, users: int, seed: int) -> dict[str, Any]:
    """Start a deployment for each way, and put loads on them in turns."""
    turns: dict[str, list[Turn]] = {way: [] for way in WAYS}
    port, deployments = free_port(), {}
    with contextlib.ExitStack() as stack:
        for way, settings in WAYS.items():
            where = {} if way == UNTRACED else {"QUIRE_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
            own = {"QUIRE_KV_MEMORY": "256MiB", **where, **settings}
            deployments[way] = stack.enter_context(running(**own))
        taken = stack.enter_context(sink(port))
        for deployment in deployments.values():
            load(deployment, users, users, seed)
        for number in range(1, rounds + 1):
            order = list(WAYS) if number % 2 else list(WAYS)[::-1]
            for way in order:
                turns[way].append(load(deployments[way], requests, users, seed + number))
                print(f"round {number}, {way}: {turns[way][-1].tokens_per_second:.0f} tokens/s", flush=True)
        if not taken.spans:
            raise RuntimeError("no span came: nothing was compared")
        spans = taken.spans
    return {"rounds": rounds, "requests": requests, "users": users, "spans": spans, "ways": compared(turns)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=96, help="of each load")
    parser.add_argument("--users", type=int, default=32, help="requests at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("ops/bench/results/traces.json"))
    options = parser.parse_args()
    results = run(options.rounds, options.requests, options.users, options.seed)
    write(options.out, "traces", options.seed, results)
    for way, found in results["ways"].items():
        print(f"{way:<36} {found}")


if __name__ == "__main__":
    main()
