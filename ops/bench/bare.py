"""The model without the chain: one prefill step at a time, as fast as the worker's own code runs it.

`python -m ops.bench.bare` loads the model that `QUIRE_MODEL` names, prints `ready`, and answers each
line `<prompt tokens> <steps> <seed>` on its standard input with the steps' milliseconds as JSON.
"""

import json
import random
import sys
import time
from array import array

from gpu_worker.runner import Runner
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup import load
from proto.sampling_pb2 import SamplingParams
from proto.worker_pb2 import NewSlot, StepPlan

GREEDY = SamplingParams(temperature=0, top_p=1, repetition_penalty=1)


def prefill_milliseconds(runner: Runner, tokens: list[int]) -> float:
    """Time of a step that computes a prompt in an empty batch and samples its first token."""
    runner.reset()
    blocks = range(-(-len(tokens) // runner.limits.block_size))
    new = NewSlot(
        slot=0,
        tokens=_packed(tokens),
        prompt_length=len(tokens),
        block_ids=_packed(list(blocks)),
        sampling=GREEDY,
    )
    plan = StepPlan(
        step=1,
        new_slots=[new],
        row_slots=_packed([0]),
        row_starts=_packed([0]),
        row_counts=_packed([len(tokens)]),
        row_samples=b"\x01",
    )
    begun = time.perf_counter()
    result = runner.execute(plan)
    milliseconds = (time.perf_counter() - begun) * 1000
    if result.errors:
        raise RuntimeError(result.errors[0].message)
    return milliseconds


def _packed(numbers: list[int]) -> bytes:
    return array("i", numbers).tobytes()


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
