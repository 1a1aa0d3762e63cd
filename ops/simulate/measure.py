"""Measures steps of many shapes on this machine, and fits the cost of a step to them.

    python -m ops.simulate.measure      the model that ships; writes ops/bench/results/step_cost.json

Some shapes are held back from the fit. The result has the cost's errors for these.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.forward import Forward
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.runner import Runner
from ops.bench.command import parser
from ops.bench.load.workload import Question
from ops.bench.record import percentile, write
from ops.bench.rig.in_process import Engine, InProcess
from ops.bench.rig.plans import decodes, fits, new_slot
from ops.model_directory.settings import SHIPPED_MODEL
from ops.simulate.cost import Measured, Shape, fit
from proto.arrays import pack
from proto.worker_pb2 import StepPlan, StepResult

ROWS = (0, 1, 2, 4, 8, 16, 32, 48, 63)
CONTEXTS = (16, 64, 128, 256, 512, 1024)
CHUNKS = (0, 0, 2, 16, 32, 64, 128, 256, 448)
STARTS = (0, 0, 64, 256, 1024)
SHAPES = 120
PROMPTS = (8, 16, 32, 64, 128, 256, 448)
"""Tokens of prompts that come while nothing is computed."""
IDLE_SECONDS = 0.1
"""Seconds before each of them. After a shorter pause steps are faster: caches and cores are still awake."""
HELD_BACK = 4
"""Every fourth shape is held back from the fit, to measure the error."""
STEPS = 9
"""Steps of each shape that are timed. Their median counts."""
BEFORE = 5
"""Steps before these: a worker repeats what it has often computed from a record."""


def measure(runner: Runner, count: int, seed: int) -> list[Measured]:
    """Measure steps of `count` random shapes, and prompts that come while nothing is computed."""
    for cache in runner.pages:  # pages that were never written are all one page of zeros, in the cache
        cache.keys.normal_()
        cache.values.normal_()
    chance = Random(seed)
    steps: list[Measured] = []
    while len(steps) < count:
        rows, context, chunk, start = map(chance.choice, (ROWS, CONTEXTS, CHUNKS, STARTS))
        if _fits(runner.limits, rows, context, chunk, start):
            steps.append(_measured(runner, rows, context, chunk, start, seed))
    prompts = [size for size in PROMPTS if _fits(runner.limits, 0, CONTEXTS[0], size, 0)]
    return steps + [_from_idle(runner, size, seed) for size in prompts]


def _from_idle(runner: Runner, prompt: int, seed: int) -> Measured:
    """Measure the first token of a request that comes alone, as its client sees it."""
    chance = Random(seed)
    deployment = InProcess(runner, shares=False, step_tokens=runner.limits.max_step_tokens)
    spent = []
    with Engine(runner) as engine:
        for _ in range(STEPS):
            time.sleep(IDLE_SECONDS)
            tokens = [chance.randrange(1, runner.limits.vocab_size) for _ in range(prompt)]
            asked = deployment.ask(Question(tokens, max_tokens=1))
            deployment.run(engine=engine)
            spent.append(asked.answer.ended - asked.answer.sent)
    return Measured(Shape(0, 0, prompt, prompt * (prompt + 1) // 2), median(spent), idle=True)


def _fits(limits: BatchLimits, rows: int, context: int, chunk: int, start: int) -> bool:
    """Whether a step can have `rows` decodes at `context` and a prompt's `chunk` tokens from `start` on."""
    longest = max(context, start + chunk)
    return (
        rows + chunk > 0
        and rows + chunk <= limits.max_step_tokens
        and context > BEFORE + STEPS
        and fits(limits, rows + 1, longest)
    )


def _measured(runner: Runner, rows: int, context: int, chunk: int, start: int, seed: int) -> Measured:
    """Measure one shape as in a deployment: a plan ahead, and a scheduler that works beside the model."""
    scheduler, echo, ends = InProcess(runner), _Echo(), list[float]()
    for _ in range(max(1, rows)):
        scheduler.ask(Question([1], max_tokens=2 * (BEFORE + STEPS)))
    scheduler.step(echo)
    runner.reset()
    with _as_it_comes(runner, chunk), Engine(runner) as engine:
        plans = _plans(runner.limits, rows, context, chunk, start, seed)
        engine.submit(next(plans))
        for plan in plans:
            engine.submit(plan)
            result = engine.result()
            ends.append(time.perf_counter())
            if result.errors:
                raise RuntimeError(result.errors[0].message)
            scheduler.step(echo)
    read = rows * (context - STEPS // 2)  # in the median step
    shape = Shape(rows, read, chunk, chunk * start + chunk * (chunk + 1) // 2)
    return Measured(shape, median(end - before for before, end in pairwise(ends[-STEPS - 1 :])))


@contextmanager
def _as_it_comes(runner: Runner, chunk: int) -> Iterator[None]:
    """Decodes are repeated from a record. A chunk beside as many of them as here seldom comes twice."""
    forward = runner.forward
    assert isinstance(forward, Forward)
    recorded = forward.recorded
    if chunk:
        forward.recorded = None
    try:
        yield
    finally:
        forward.recorded = recorded


class _Echo(Engine):
    """Computes nothing: whatever is sampled is token 0."""

    def __init__(self) -> None:
        self._taken: deque[StepPlan] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._taken.append(plan)

    def result(self) -> StepResult:
        plan = self._taken.popleft()
        return StepResult(step=plan.step, tokens=pack([0] * sum(plan.rows.samples)))


def _plans(
    limits: BatchLimits, rows: int, context: int, chunk: int, start: int, seed: int
) -> Iterator[StepPlan]:
    """Plans in which `rows` sequences decode. Each plan also computes a chunk of a new prompt."""
    first = rows * -(-context // limits.block_size)
    prompt = [1 + seed % 7] * (start + chunk)
    for plan in decodes(limits, rows, context, BEFORE + STEPS, seed):
        if chunk:
            if plan.step > 1:
                plan.freed_slots = pack([rows])
            plan.new_slots.append(new_slot(limits, rows, prompt, first, len(prompt)))
            plan.rows.slots += pack([rows])
            plan.rows.starts += pack([start])
            plan.rows.counts += pack([chunk])
            plan.rows.samples += b"\1"
        yield plan


def fitted(steps: list[Measured]) -> dict[str, Any]:
    """The fitted cost, and its relative errors for the steps that were held back."""
    held_back = steps[::HELD_BACK]
    cost = fit([each for number, each in enumerate(steps) if number % HELD_BACK])
    errors = cost.errors(held_back)
    return {
        "cost_ms": cost.milliseconds(),
        "held_back": len(held_back),
        "error_mean": round(fmean(errors), 4),
        "error_p50": round(median(errors), 4),
        "error_p90": round(percentile(errors, 0.9), 4),
        "steps": [
            each.shape._asdict() | {"idle": each.idle, "ms": round(1000 * each.seconds, 3)} for each in steps
        ],
    }


def main() -> None:
    command = parser(__doc__, "step_cost.json")
    command.add_argument("--model", type=Path, default=SHIPPED_MODEL, metavar="DIR")
    command.add_argument("--seed", type=int, default=1)
    arguments = command.parse_args()
    settings = WorkerSettings(model=arguments.model, kv_memory=1 << 30)

    steps = measure(load(settings), SHAPES, arguments.seed)
    found = {"model": settings.served_name, "threads": settings.thread_count} | fitted(steps)
    write(arguments.out, "step-cost", arguments.seed, found)
    print(f"mean error {found['error_mean']:.1%}, 9 of 10 steps within {found['error_p90']:.1%}")
    print(found["cost_ms"])


if __name__ == "__main__":
    main()
