"""Measures the simulator's error: the same requests at the same times are computed and simulated.

    python -m ops.simulate.validate     writes ops/bench/results/simulate_validation.json

Requests are computed by the scheduler's core and a worker's runner in one process
(ops/bench/rig/in_process.py). A machine's speed changes from minute to minute. So steps are measured before
and after each load, and the load is simulated with the cost that fits these steps. A virtual machine may lose
its cores to others for some seconds, in which no step takes the time that it was measured to take. So each
load is computed several times, and the runs that lost the least count. The result has the medians of these.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.runner import Runner
from ops.bench.command import parser
from ops.bench.load.load import summarize
from ops.bench.load.workload import Question
from ops.bench.record import aligned, write
from ops.bench.rig.in_process import Engine, InProcess
from ops.bench.rig.stolen import CALM, stolen_share
from ops.model_directory.settings import SHIPPED_MODEL
from ops.simulate.arrivals import Load
from ops.simulate.cost import StepCost, fit
from ops.simulate.measure import measure
from ops.simulate.simulation import Setting, Simulation
from ops.simulate.trace import Arrival

SETTING = Setting()
SEED = 0
SHAPES = 40
"""Number of steps that are measured between two loads."""
RUNS = 3
"""Runs of each load that count."""
TRIES = 6
"""Runs of each load at most."""
TOKENS = (300, 4000)
"""A range of token ids that are ordinary tokens in most models: the first, and one past the last."""
FIGURES = ("output_rate", "TTFT p50", "TTFT p90", "ITL p50", "ITL p90", "E2E p50", "E2E p90")
LOADS = (
    Load("poisson", requests=60, rate=4, tenants=1),
    Load("poisson", requests=240, rate=16, tenants=1),
    Load("poisson", requests=400, rate=64, tenants=1),
    Load("bursts", requests=120, rate=8, tenants=1),
    Load("shared", requests=120, rate=8, tenants=1),
)
"""A light load, a heavy load, an overload, bursts, and prompts with shared prefixes."""


def in_earnest(runner: Runner, arrivals: Sequence[Arrival], setting: Setting, seed: int) -> dict[str, float]:
    """Compute each request at its time, and wait for all answers. Returns `FIGURES` by name."""
    deployment = InProcess(runner, setting.depth, setting.step_tokens, num_blocks=setting.pool_blocks)
    due = deque(zip(arrivals, _questions(arrivals, seed), strict=True))
    asked = []
    begun = time.perf_counter()

    def ask(_: int = 0) -> None:
        while due and begun + due[0][0].at <= time.perf_counter():
            arrival, question = due.popleft()
            asked.append(deployment.ask(question))
            asked[-1].answer.sent = begun + arrival.at

    with Engine(runner) as engine:  # a worker's goes on while there is nothing to do, too
        while due:
            time.sleep(max(0.0, begun + due[0][0].at - time.perf_counter()))
            ask()
            deployment.run(ask, engine)
    answers = [each.answer for each in asked]
    found = summarize(answers, max(answer.ended for answer in answers) - begun)
    return _figures(found.output_rate, found.first_token, found.between_tokens, found.end_to_end)


def simulated(arrivals: Sequence[Arrival], setting: Setting, cost: StepCost) -> dict[str, float]:
    """Simulate the same requests. Returns `FIGURES` by name."""
    found: Any = Simulation(setting, cost, len(arrivals)).run(iter(arrivals)).summary()
    return _figures(
        found["output_rate"], found["first_token_ms"], found["between_tokens_ms"], found["end_to_end_ms"]
    )


class Run(NamedTuple):
    """One run of a load, computed and simulated."""

    stolen: float
    """Share of the cores' time that other virtual machines took, at its worst in the load or the steps."""
    earnest: dict[str, float]
    """`FIGURES` of the computed requests."""
    simulated: dict[str, float]
    """`FIGURES` of the simulated requests."""


def validate(runner: Runner, loads: Sequence[Load], setting: Setting = SETTING) -> list[dict[str, Any]]:
    """Compute and simulate each load. `error` in the result: simulated over computed figure, less 1."""
    for each in loads:
        in_earnest(runner, list(each.arrivals()), setting, SEED)
    compared = []
    steps = partial(measure, runner, SHAPES, SEED)
    before, stolen_before = stolen_share(steps)
    for each in loads:
        arrivals, runs = list(each.arrivals()), list[Run]()
        while sum(run.stolen <= CALM for run in runs) < RUNS and len(runs) < TRIES:
            earnest, stolen = stolen_share(partial(in_earnest, runner, arrivals, setting, SEED))
            after, stolen_after = stolen_share(steps)
            guess = simulated(arrivals, setting, fit(before + after))
            runs.append(Run(max(stolen_before, stolen, stolen_after), earnest, guess))
            before, stolen_before = after, stolen_after
        compared.append({"load": asdict(each)} | _summary(sorted(runs, key=lambda run: run.stolen)[:RUNS]))
    return compared


def _summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Medians of the runs, and the greatest share of the cores' time that one of them lost."""
    earnest = {name: round(median(run.earnest[name] for run in runs), 3) for name in FIGURES}
    guess = {name: round(median(run.simulated[name] for run in runs), 3) for name in FIGURES}
    error = {name: round(guess[name] / earnest[name] - 1, 4) for name in FIGURES}
    stolen = round(max(run.stolen for run in runs), 4)
    return {"stolen": stolen, "earnest": earnest, "simulated": guess, "error": error}


def table(compared: Sequence[dict[str, Any]]) -> str:
    """A table of the errors for a terminal."""
    rows = [["load", "requests/s", *FIGURES]]
    for each in compared:
        errors = [f"{each['error'][name]:+.1%}" for name in FIGURES]
        rows.append([each["load"]["kind"], f"{each['load']['rate']:g}", *errors])
    return aligned(rows)


def _questions(arrivals: Sequence[Arrival], seed: int) -> list[Question]:
    """The requests with random prompts. Prompts that share a prefix begin with the same tokens."""
    chance = Random(seed)
    prefixes: dict[str, list[int]] = {}
    questions = []
    for arrival in arrivals:
        shared = arrival.shared_tokens
        if arrival.prefix not in prefixes:
            prefixes[arrival.prefix] = [chance.randrange(*TOKENS) for _ in range(shared)]
        own = [chance.randrange(*TOKENS) for _ in range(arrival.prompt_tokens - shared)]
        questions.append(Question(prefixes[arrival.prefix][:shared] + own, arrival.output_tokens))
    return questions


def _figures(
    rate: float, first: dict[str, float], between: dict[str, float], whole: dict[str, float]
) -> dict[str, float]:
    values = (rate, first["p50"], first["p90"], between["p50"], between["p90"], whole["p50"], whole["p90"])
    return dict(zip(FIGURES, values, strict=True))


def main() -> None:
    command = parser(__doc__, "simulate_validation.json")
    command.add_argument("--model", type=Path, default=SHIPPED_MODEL, metavar="DIR")
    arguments = command.parse_args()
    settings = WorkerSettings(model=arguments.model, kv_memory=1 << 30, max_slots=SETTING.slots)
    runner = load(settings)
    measure(runner, SHAPES, SEED)  # warms up
    compared = validate(runner, LOADS)
    write(arguments.out, "simulate-validation", SEED, {"model": settings.served_name, "loads": compared})
    print(table(compared))


if __name__ == "__main__":
    main()
