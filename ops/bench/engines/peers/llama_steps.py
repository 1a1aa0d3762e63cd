"""llama.cpp's steps with a GGUF file, in its own Python: see `ops/bench/gguf.py`, which runs this.

Prints milliseconds as JSON: of a prompt, and of decodes of some users. All of them have a prompt of the same
length, as in a static batch, and there is no server and no scheduler.
"""

import argparse
import importlib
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from ops.bench.engines.peers.llama_server import MODULES, Library, Model, Token


def measured(
    model: Model, users: Sequence[int], prompt: int, long: int, steps: int, seed: int
) -> dict[str, float]:
    """`prompt`: tokens of each user's prompt. `long`: of the prompt that is timed. `steps`: of answers."""
    chance, found = random.Random(seed), dict[str, float]()

    def step(tokens: Sequence[tuple[int, int, bool]]) -> float:
        """Milliseconds. `tokens`: sequence, position, and whether the next one is asked for."""
        given = [Token(chance.randrange(1000), position, own, last) for own, position, last in tokens]
        begun = time.perf_counter()
        model.compute(given)
        return 1000 * (time.perf_counter() - begun)

    for count in users:
        for user in range(count):
            step([(user, position, position == prompt - 1) for position in range(prompt)])
        times = [step([(user, prompt + more, True) for user in range(count)]) for more in range(steps)]
        found[f"{count} users"] = median(times)
        for user in range(count):
            model.forget(user)
    found[f"prompt of {long}"] = step([(0, position, position == long - 1) for position in range(long)])
    model.forget(0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bindings", choices=MODULES, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--users", type=int, nargs="+", required=True)
    parser.add_argument("--prompt", type=int, required=True)
    parser.add_argument("--long", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    functions = importlib.import_module(MODULES[given.bindings])
    context = max(given.long, given.prompt + given.steps) + 1
    model = Library(functions, given.model, given.threads, max(given.users), context)
    measured(model, given.users[:1], given.prompt, given.long, given.steps, 0)  # warms up
    print(json.dumps(measured(model, given.users, given.prompt, given.long, given.steps, given.seed)))


if __name__ == "__main__":
    main()
