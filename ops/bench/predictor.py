"""What drafts of a layer for multi-token prediction cost: milliseconds of steps with them and without.

`python -m ops.bench.predictor` makes a model of the sizes of Qwen 3.5 with 0.8 billion weights, its
vocabulary of 248,320 included, with a layer, and random weights in bfloat16. Answers of one, two and four
users get none, one, two, three and four drafts in each step, in turns. Random weights guess nothing: how many
drafts hold depends on the model and the text. `pays from` is the chance with which each draft must hold for a
step with them to be worth its time; those behind one that does not hold are lost.
"""

import random
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from gpu_worker.step.runner import Runner
from ops.bench.command import parser
from ops.bench.record import write
from ops.bench.recurrent import make
from ops.bench.rig.on_cpu import load_on_cpu
from ops.bench.rig.plans import new_slot, rows_of
from proto import arrays
from proto.worker_pb2 import StepPlan

SIZES: dict[str, Any] = {"vocab_size": 248_320, "hidden_size": 1024, "num_hidden_layers": 24}
PROMPT = 256
"""Tokens of each user's prompt."""
USERS = (1, 2, 4)
DRAFTS = (0, 1, 2, 3, 4)
STEPS = 12
"""Steps of each number of drafts in a round."""


def make_with_layer(directory: Path, seed: int, **smaller: Any) -> None:
    """Write the model, or a `smaller` one. Its layer has the weights of the last one."""
    sizes = SIZES | smaller
    make("Qwen 3.5", directory, seed, **sizes)
    file, size = directory / "model.safetensors", sizes["hidden_size"]
    tensors, last = load_file(file), f"model.layers.{sizes['num_hidden_layers'] - 1}."
    added = {
        name.replace(last, "mtp.layers.0."): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith(last)
    }
    added["mtp.fc.weight"] = 0.02 * torch.randn(size, 2 * size)
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        added[f"mtp.{norm}.weight"] = torch.zeros(size)
    save_file(tensors | {name: tensor.bfloat16() for name, tensor in added.items()}, file)


def load_runner(directory: Path, speculation: str) -> Runner:
    """A worker's runner, with the layer or without."""
    runner = load_on_cpu(directory, speculation=speculation)
    runner.enter()
    return runner


class Answers:
    """The answers of some users, which go on step by step."""

    def __init__(self, runner: Runner, users: int, seed: int) -> None:
        chance, limits = random.Random(seed), runner.limits
        self._runner, self._users, self._known = runner, users, [PROMPT] * users
        each = -(-limits.max_model_len // limits.block_size)
        runner.reset()
        self._step = 1
        for user in range(users):
            prompt = [chance.randrange(limits.vocab_size) for _ in range(PROMPT)]
            new = new_slot(limits, user, prompt, user * each, limits.max_model_len)
            plan = StepPlan(new_slots=[new], rows=rows_of([user], [0], [PROMPT], b"\1"))
            self._go_on(plan, [user])

    def milliseconds(self, drafts: int) -> float:
        """Milliseconds of a step in which each user's row has this number of drafts."""
        counts = [1 + drafts] * self._users
        rows = rows_of(range(self._users), [known - 1 for known in self._known], counts, bytes(counts))
        plan = StepPlan(rows=rows, draft_tokens=arrays.pack([-1] * drafts * self._users))
        return self._go_on(plan, list(range(self._users)))

    def _go_on(self, plan: StepPlan, users: list[int]) -> float:
        plan.step = self._step
        self._step += 1
        begun = time.perf_counter()
        result = self._runner.execute(plan)
        taken = 1000 * (time.perf_counter() - begun)
        if result.errors:
            raise RuntimeError(result.errors[0].message)
        tokens = arrays.unpack(result.tokens)
        each = len(tokens) // len(users)
        for number, user in enumerate(users):
            self._known[user] += sum(token >= 0 for token in tokens[number * each : (number + 1) * each])
        return taken


def pays_from(without: float, with_drafts: float, drafts: int) -> float:
    """The chance of each draft to hold from which on a step with them gives more tokens in its time."""
    wanted = with_drafts / without
    low, high = 0.0, 1.0
    for _ in range(30):
        chance = (low + high) / 2
        given = sum(chance**number for number in range(drafts + 1))
        low, high = (low, chance) if given >= wanted else (chance, high)
    return round(high, 2)


def measure(directory: Path, rounds: int, seed: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a step by users and drafts, medians."""
    runners = {name: load_runner(directory, name) for name in ("off", "mtp")}
    found = dict[str, dict[str, float]]()
    for users in USERS:
        taken: dict[str, list[float]] = defaultdict(list)
        for turn in range(rounds):
            plain, drafting = (Answers(runner, users, seed + turn) for runner in runners.values())
            for _ in range(STEPS):  # steps are recorded
                plain.milliseconds(0)
            for _ in range(STEPS):
                taken["without the layer"].append(plain.milliseconds(0))
                for drafts in DRAFTS:
                    taken[f"{drafts} drafts"].append(drafting.milliseconds(drafts))
        times = {name: round(median(each), 2) for name, each in taken.items()}
        for drafts in DRAFTS[1:]:
            step = times[f"{drafts} drafts"]
            times[f"{drafts} drafts, pays from"] = pays_from(times["without the layer"], step, drafts)
        found[f"{users} users"] = times
        print(users, "users:", times, flush=True)
    return found


def main() -> None:
    command = parser(__doc__, "predictor.json")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_with_layer(Path(folder), options.seed)
        write(
            options.out,
            "predictor",
            options.seed,
            {"milliseconds": measure(Path(folder), options.rounds, options.seed)},
        )


if __name__ == "__main__":
    main()
