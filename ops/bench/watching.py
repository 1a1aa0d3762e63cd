"""What watching costs: metrics and recordings, beside the step that is watched.

    python -m ops.bench.watching [--rows N] [--step-ms MS]

Each call is repeated as the processes make it, and the fastest of several rounds counts. The share is of one
core's time, in steps of MS milliseconds that give each of N sequences a token. Every five seconds each of the
four processes leaves a snapshot of its metrics in Redis. Writes ops/bench/results/watching.json.
"""

import timeit
from array import array
from collections.abc import Callable, Sequence

from gateway.upstream.measures import AnswerTimes
from gateway.upstream.measures import Measures as GatewayMeasures
from ops.bench.command import parser
from ops.bench.record import write
from ops.runtime.metrics import Metrics
from ops.runtime.metrics_store import WRITE_SECONDS
from proto.arrays import pack
from proto.sampling import greedy
from proto.sampling_pb2 import NOT_FINISHED
from proto.tokenizer_pb2 import TextRequest
from proto.worker_pb2 import StepResult
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.request import Request
from scheduler_svc.measures import Measures
from scheduler_svc.recording.tape import RecordedScheduler
from scheduler_svc.wire import plan_to, result_from

CALLS, ROUNDS = 200, 5
PROCESSES = 4
BLOCK_SIZE = 16


def measure(rows: int) -> dict[str, float]:
    """Microseconds of each, for steps in which `rows` sequences decode."""
    metrics = Metrics()
    gateway, scheduler = GatewayMeasures("m", metrics), Measures("m", metrics)
    limits = WorkerLimits(
        num_blocks=4 * rows,
        block_size=BLOCK_SIZE,
        max_slots=rows,
        max_model_len=2 * BLOCK_SIZE,
        max_step_tokens=2 * rows,
        vocab_size=1000,
    )
    fleet = Fleet(2 * rows, make=RecordedScheduler)
    recorded, _ = fleet.add_worker(limits)
    assert isinstance(recorded, RecordedScheduler)
    for number in range(rows):
        fleet.accept(Request(str(number), array("i", [number]), max_tokens=8, sampling=greedy()))
    result = StepResult(step=1, tokens=pack([7] * rows), duration_us=9000)
    recorded.plan()  # of prompts, which the next one goes on from
    recorded.complete(result_from(result)[0])
    plan = recorded.plan()
    assert plan is not None
    assert len(plan.rows.slots) == rows
    message = plan_to(plan)
    answer = AnswerTimes(gateway, TextRequest(n=1))

    def step() -> None:
        scheduler.planned(plan)
        scheduler.computed(result)

    def tape() -> None:
        recorded.tape.planning()
        recorded.tape.planned(message)
        recorded.tape.came(result)

    return {
        "gateway, a token": _microseconds(lambda: answer.tokens(0, 1, NOT_FINISHED)),
        "scheduler, a step": _microseconds(step),
        "scheduler, a step on record": _microseconds(tape),
        "a snapshot": _microseconds(metrics.snapshot),
    }


def shares(costs: dict[str, float], rows: int, step_ms: float) -> dict[str, float]:
    """Parts of one core's time."""
    step_us = 1e3 * step_ms
    metrics = {
        "gateway": rows * costs["gateway, a token"] / step_us,
        "scheduler": costs["scheduler, a step"] / step_us,
        "snapshots": PROCESSES * costs["a snapshot"] / (1e6 * WRITE_SECONDS),
    }
    recording = costs["scheduler, a step on record"] / step_us
    return metrics | {"metrics": sum(metrics.values()), "recording": recording}


def _microseconds(call: Callable[[], object]) -> float:
    return 1e6 * min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS


def main(arguments: Sequence[str] | None = None) -> int:
    command = parser(__doc__, "watching.json")
    command.add_argument("--rows", type=int, default=32, help="sequences of a step (default: 32)")
    command.add_argument("--step-ms", type=float, default=20.0, help="of a step (default: 20)")
    options = command.parse_args(arguments)
    costs = measure(options.rows)
    found = shares(costs, options.rows, options.step_ms)
    results = {
        "rows": options.rows,
        "step_ms": options.step_ms,
        "microseconds": {name: round(cost, 2) for name, cost in costs.items()},
        "part of a core": {name: round(share, 5) for name, share in found.items()},
    }
    write(options.out, "watching", 0, results)
    for name, cost in costs.items():
        print(f"{name:<28}{cost:10.2f} µs")
    for name, share in found.items():
        print(f"{name:<28}{share:10.3%} of a core")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
