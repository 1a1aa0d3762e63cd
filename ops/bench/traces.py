"""What traces cost: turned off and on in turns, in the processes of one deployment.

    python -m ops.bench.traces [--rate 0.1] [--seconds 145] [--requests 192] [--users 32]

Two equal deployments differ by 2.6 %, far more than traces cost. So the same processes serve short loads,
of which every second one is traced (`switch/sitecustomize.py`). Each traced load is compared with the mean of
the untraced ones before and after it. What counts is the median of these comparisons, with its interval of
95 %. Untraced loads that are compared with each other in the same manner show what can be told apart. Loads
that lost cores to other virtual machines are left out (`rig/stolen.py`), unless all did.

Spans go to a receiver in this process. Those of a load are sent at its end, and the CPU time of that belongs
to it. A load has about as many requests as are otherwise answered in the five seconds between two sendings.

computing   the shipped model is computed on this machine. The CPU time of the model's threads differs by some
            percent from load to load, which is more than traces cost.
paced       nothing is computed, the worker does everything else (`ops.bench.paced`). CPU time that traces add
            is seen there in each process. What traces cost is its sum over the processes, as a part of all
            CPU time of a request whose model is computed. Other work on the host of a machine makes all
            processes slower by a tenth for some seconds. So their CPU time is divided by that of the thread
            that sends the load: it belongs to this process, and traces cost it nothing.

Writes ops/bench/results/traces.json. Some five minutes.
"""

import asyncio
import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ops.bench.command import parser
from ops.bench.load.client import CompletionClient
from ops.bench.load.load import closed_loop
from ops.bench.load.processes import cpu_seconds, running
from ops.bench.load.workload import Workload
from ops.bench.paced import deployed, process_ids
from ops.bench.record import write
from ops.bench.rig.stolen import calm, stolen_since
from ops.launcher.redis_server import free_port

SWITCH = Path(__file__).with_name("switch")
OFF, ALL = "off", "all"
COMPARISONS = ("traced over untraced", "untraced over untraced")
ANSWER = 64
"""Tokens."""
WORKLOAD = Workload(prompt_lengths=(64,), output_lengths=(ANSWER, ANSWER))
STEP_MS = 5.0
"""Milliseconds of a step of the worker that computes nothing."""
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
    cpu_us_per_request: Mapping[str, float]
    """CPU time of each process, and of `ALL`, in microseconds."""
    yardstick: float = 1.0
    """What the CPU time is held against."""
    stolen: float = 0.0
    """Share of the cores' time that others took meanwhile."""

    def scaled(self, by: float) -> "Turn":
        used = {name: by * value for name, value in self.cpu_us_per_request.items()}
        return self._replace(cpu_us_per_request=used)


class Target(NamedTuple):
    """A deployment that loads are put on."""

    url: str
    model: str
    processes: Mapping[str, int]
    """Ids by name."""


Deployment = Callable[[Mapping[str, str], int], contextlib.AbstractAsyncContextManager[Target]]
"""Starts a deployment with these settings, for this number of requests at once."""


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


async def load(target: Target, requests: int, users: int, seed: int) -> tuple[float, float]:
    """Put a load on a deployment. Raises `RuntimeError` if an answer failed.

    Tokens a second, and the CPU seconds of this thread.
    """
    conversations = WORKLOAD.conversations(requests, seed)  # others in each turn: no prompt is cached
    client, begun = CompletionClient(target.url, target.model), time.thread_time()
    answers, seconds = await closed_loop(client, conversations, users)
    used = time.thread_time() - begun
    if failed := [answer.error for answer in answers if answer.error]:
        raise RuntimeError(f"{len(failed)} answers failed: {failed[0]}")
    return requests * ANSWER / seconds, used


def compared(turns: Sequence[Turn]) -> dict[str, Any]:
    """`turns`: untraced, traced, untraced and so on; both ends are untraced."""
    usual = statistics.median(turn.yardstick for turn in turns)
    turns = [turn.scaled(usual / turn.yardstick) for turn in turns]
    bare, traced = turns[::2], turns[1::2]
    return {
        "untraced": {
            "tokens_per_second": round(statistics.median(turn.tokens_per_second for turn in bare), 1),
            "cpu_us_per_request": {
                name: round(statistics.median(turn.cpu_us_per_request[name] for turn in bare), 1)
                for name in bare[0].cpu_us_per_request
            },
        },
        COMPARISONS[0]: _compared(traced, bare),
        COMPARISONS[1]: _compared(bare[1::2], bare[::2]),
    }


def _compared(turns: Sequence[Turn], around: Sequence[Turn]) -> dict[str, Any]:
    """Each turn with the mean of the two around it."""
    triples = calm(
        list(zip(turns, around, around[1:], strict=False)), lambda each: max(turn.stolen for turn in each)
    )

    rates = [
        one.tokens_per_second / ((before.tokens_per_second + after.tokens_per_second) / 2)
        for one, before, after in triples
    ]
    used = [[turn.cpu_us_per_request for turn in each] for each in triples]
    return {
        "number": len(triples),
        "tokens_per_second": _median(rates, 4),
        "added_cpu_us_per_request": {
            name: _median([one[name] - (before[name] + after[name]) / 2 for one, before, after in used], 1)
            for name in turns[0].cpu_us_per_request
        },
    }


def _median(values: Sequence[float], digits: int) -> dict[str, Any]:
    low, high = interval(values)
    median = round(statistics.median(values), digits)
    return {"median": median, "95 %": [round(low, digits), round(high, digits)]}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The median's interval of 95 %, whatever the distribution of the values.

    The number of values below the median has a binomial distribution: of n, n/2 ± 1.96 √n / 2.
    """
    ordered = sorted(values)
    off = min(len(ordered) // 2, int(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5))
    off = max(0, off)
    return ordered[off], ordered[-1 - off]


@contextlib.asynccontextmanager
async def computing(settings: Mapping[str, str], users: int) -> AsyncIterator[Target]:
    """A deployment of the shipped model."""
    with running(QUIRE_KV_MEMORY="256MiB", **settings) as deployment:
        yield Target(deployment.url, deployment.model, deployment.pids)


@contextlib.asynccontextmanager
async def paced(settings: Mapping[str, str], users: int) -> AsyncIterator[Target]:
    """One whose worker computes nothing."""
    async with deployed(STEP_MS, users, settings=settings) as (options, supervisor, redis):
        yield Target(options.url, options.model_names[0], process_ids(supervisor, redis))


async def loads(
    name: str, rate: float, seconds: float, requests: int, users: int, seed: int
) -> dict[str, Any]:
    """Start a deployment and put loads on it for so long. Every second one is traced."""
    turns: list[Turn] = []
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {
            "QUIRE_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "QUIRE_TRACE_SLOW_SECONDS": SLOW_SECONDS,
            "PYTHONPATH": str(SWITCH),
            "TRACES_SWITCH": str(folder),
        }
        target = await stack.enter_async_context(DEPLOYMENTS[name](settings, users))
        switch, taken = Switch(folder, target.processes), stack.enter_context(sink(port))
        await load(target, 4 * users, users, seed)
        switch.turn(OFF)
        await load(target, users, users, seed + 1)
        first, before, stolen = taken.spans, cpu_seconds(target.processes), stolen_since()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or len(turns) % 2 == 0:
            tokens_per_second, own = await load(target, requests, users, seed + 2 + len(turns))
            switch.turn(OFF if len(turns) % 2 else f"{rate:g}")  # for the next load; it sends what is left
            after = cpu_seconds(target.processes)
            used = {each: (after[each] - before[each]) / requests * 1e6 for each in after}
            used[ALL] = sum(used.values())
            turns.append(Turn(tokens_per_second, used, own if name == "paced" else 1.0, stolen()))
            before, stolen = after, stolen_since()
            print(f"{name} {len(turns)}: {used[ALL]:.0f} µs of CPU a request", flush=True)
        if taken.spans == first:
            raise RuntimeError("no span came: nothing was compared")
        spans = taken.spans - first
    return {"turns": len(turns), "spans": spans, **compared(turns)}


DEPLOYMENTS: Mapping[str, Deployment] = {"computing": computing, "paced": paced}


def run(rate: float, seconds: float, requests: int, users: int, seed: int) -> dict[str, Any]:
    """What traces cost at this rate. `seconds`: for which loads are put on each deployment."""
    found = {name: asyncio.run(loads(name, rate, seconds, requests, users, seed)) for name in DEPLOYMENTS}
    whole = found["computing"]["untraced"]["cpu_us_per_request"][ALL]
    terms = {"rate": rate, "requests": requests, "users": users, "answer_tokens": ANSWER, "step_ms": STEP_MS}
    parts = {name: part_of(found["paced"][name], whole) for name in COMPARISONS}
    return {**terms, "added part of all CPU": parts, **found}


def part_of(comparison: Mapping[str, Any], whole: float) -> dict[str, Any]:
    """What all processes of a paced deployment use more. `whole`: CPU time of a request that is computed."""
    added = comparison["added_cpu_us_per_request"][ALL]
    low, high = (round(end / whole, 4) for end in added["95 %"])
    return {"median": round(added["median"] / whole, 4), "95 %": [low, high]}


def main() -> None:
    command = parser(__doc__, "traces.json")
    command.add_argument("--rate", type=float, default=0.1, help="part of the requests whose traces are sent")
    command.add_argument("--seconds", type=float, default=145.0, help="of loads on each deployment")
    command.add_argument("--requests", type=int, default=192, help="of each load")
    command.add_argument("--users", type=int, default=32, help="requests at once")
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    results = run(options.rate, options.seconds, options.requests, options.users, options.seed)
    write(options.out, "traces", options.seed, results)
    for name, found in results.items():
        print(f"{name:<24} {found}")


if __name__ == "__main__":
    main()
