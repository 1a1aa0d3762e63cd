"""Long contexts: what a prompt of 32,000 tokens does to answers beside it, and what a text without end takes.

`python -m ops.bench.long_contexts` runs the scheduler's core and the worker in this process, with the shipped
model's weights in bfloat16. Its context is made longer than the model was trained for. The tokens beyond that
are nonsense, but computing them takes as long as computing sensible ones.
"""

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.runner import Runner
from ops.bench.command import parser
from ops.bench.load.workload import Question
from ops.bench.record import percentile, write
from ops.bench.rig.in_process import InProcess, TrackedRequest
from ops.model_directory.settings import SHIPPED_MODEL

PROMPT = 32_000
USERS = 8
BEFORE = 60
"""Steps in which the users are alone."""
ROLLS = 4


@contextmanager
def stretched(context: int) -> Iterator[Path]:
    """The shipped model, with `context` positions in its configuration: its weights were trained on fewer."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file in SHIPPED_MODEL.iterdir():
            if file.name != "config.json":
                (directory / file.name).symlink_to(file)
        config = json.loads((SHIPPED_MODEL / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
        yield directory


def beside_a_long_prompt(runner: Runner, step_tokens: int, seed: int) -> dict[str, float]:
    """Milliseconds between the tokens of users who are alone first, and then beside the prompt."""
    chance = random.Random(seed)
    engine = InProcess(runner, step_tokens=step_tokens, shares=False)
    length = runner.limits.max_model_len - 16  # slow steps take less of the prompt, so that it may take many
    users = [engine.ask(Question(_drawn(chance, 16), length)) for _ in range(USERS)]
    late = list[TrackedRequest]()

    def come(step: int) -> None:
        if step == BEFORE:
            late.append(engine.ask(Question(_drawn(chance, PROMPT), 1)))
        if late and late[0].answer.ended:
            for user in users:
                engine.cancel(user)

    engine.run(come)
    begun, first = late[0].answer.sent, late[0].answer.chunks[0]
    alone, beside = list[float](), list[float]()
    for user in users:
        for before, after in pairwise(user.answer.chunks[8:]):  # by then all prompts of theirs are computed
            if after <= begun:
                alone.append(1000 * (after - before))
            elif begun <= before and after <= first:
                beside.append(1000 * (after - before))
    return {
        "alone p50 ms": round(percentile(alone, 0.5), 2),
        "alone p99 ms": round(percentile(alone, 0.99), 2),
        "beside p50 ms": round(percentile(beside, 0.5), 2),
        "beside p99 ms": round(percentile(beside, 0.99), 2),
        "longest ms": round(max(beside), 2),
        "tokens beside it": len(beside),
        "prompt computed in s": round(first - begun, 2),
    }


def without_end(runner: Runner, seed: int) -> dict[str, float]:
    """What rolling costs one text of a few contexts."""
    context = runner.limits.max_model_len
    engine = InProcess(runner)
    chance = random.Random(seed)
    asked = engine.ask(Question(_drawn(chance, 16), context + ROLLS * context // 2 - 16), rolling=True)
    engine.run()
    waits = asked.answer.gaps
    usual = median(waits)
    pauses = sorted(waits)[-ROLLS:]
    return {
        "context": context,
        "tokens": asked.answer.output_tokens,
        "usual ms": round(1000 * usual, 3),
        "pause of a roll ms": round(1000 * median(pauses), 1),
        "share of the time": round(sum(pause - usual for pause in pauses) / sum(waits), 4),
    }


def _drawn(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(300, 4000) for _ in range(count)]


def _runner(model: Path, **settings: Any) -> Runner:
    return load(WorkerSettings(model=model, dtype="bfloat16", **settings))


def main() -> None:
    command = parser(__doc__, "long_contexts.json")
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    results: dict[str, Any] = {
        "without_end": without_end(_runner(SHIPPED_MODEL, max_slots=1), options.seed),
        "beside_a_prompt_of_32000_by_step_tokens": {},
    }
    with stretched(PROMPT + 100) as model:
        runner = _runner(model, max_slots=USERS + 1, kv_memory=2**30)
        for step_tokens in (128, 512):
            found = beside_a_long_prompt(runner, step_tokens, options.seed)
            results["beside_a_prompt_of_32000_by_step_tokens"][str(step_tokens)] = found
    write(options.out, "long-contexts", options.seed, results)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
