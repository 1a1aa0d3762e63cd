"""A runner without scheduler and gateway: times prefill steps one by one.

`python -m ops.bench.rig.bare` loads the model that `QUIRE_MODEL` names, prints `ready`, and answers each
line `<prompt tokens> <steps> <seed>` on its standard input with the steps' milliseconds as JSON.
"""

import json
import random
import sys
import time

from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.runner import Runner
from ops.bench.rig.plans import prefill


def prefill_milliseconds(runner: Runner, tokens: list[int]) -> float:
    """Milliseconds of a step that computes a prompt in an empty batch and samples one token."""
    runner.reset()
    plan = prefill(runner.limits, tokens)
    begun = time.perf_counter()
    result = runner.execute(plan)
    milliseconds = (time.perf_counter() - begun) * 1000
    if result.errors:
        raise RuntimeError(result.errors[0].message)
    return milliseconds


def main() -> None:
    runner = load(WorkerSettings.from_environment())
    print("ready", flush=True)
    for line in sys.stdin:
        length, steps, seed = map(int, line.split())
        chance = random.Random(seed)
        prompts = [[chance.randrange(300, 4000) for _ in range(length)] for _ in range(steps)]
        print(json.dumps([prefill_milliseconds(runner, prompt) for prompt in prompts]), flush=True)


if __name__ == "__main__":
    main()
