"""Images beside transformers: seconds until the first token about one, and what answers about it cost.

`python -m ops.bench.images` makes a model of the sizes of Qwen 3.5 with 0.8 billion weights, with a vision
tower of 100 million, and random weights in bfloat16. A prompt has an image of 256 or 1,024 tokens, and begins
with the image's file; transformers computes it with its whole model. Steps are of answers of one user and of
eight, behind a text and behind images.
"""

import io
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.models.qwen3_5 import Qwen3_5Config

from gpu_worker.step.runner import Runner
from ops.bench.command import parser
from ops.bench.record import write
from ops.bench.rig.on_cpu import load_on_cpu
from ops.bench.rig.plans import new_slot, rows_of
from proto.images_pb2 import PromptImage
from proto.worker_pb2 import NewSlot, StepPlan

TEXT: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 3584}
TEXT |= {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 32_000, "head_dim": 256}
TEXT |= {"max_position_embeddings": 4096, "tie_word_embeddings": True, "pad_token_id": None}
TOWER: dict[str, Any] = {"depth": 12, "hidden_size": 768, "num_heads": 12, "intermediate_size": 3072}
TOWER |= {"patch_size": 16, "out_hidden_size": 1024, "num_position_embeddings": 2304}
PLACEHOLDER = 31_999
PATCH = 32
"""Pixels of a side of what becomes one token."""
SIDES = (16, 32)
"""Rows and columns of images."""
AROUND = 16
"""Tokens of text before an image, and behind it."""
CHUNK = 512
USERS = (1, 8)
STEPS = 24
"""Steps that are timed of each kind, after as many that are not."""


def make(directory: Path, seed: int, text: dict[str, Any] = TEXT, tower: dict[str, Any] = TOWER) -> None:
    """Write the model."""
    torch.manual_seed(seed)
    config = Qwen3_5Config(
        text_config=TEXT | text,
        vision_config=TOWER | tower,
        image_token_id=PLACEHOLDER,
        tie_word_embeddings=True,
    )
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    sizes = {"shortest_edge": PATCH**2, "longest_edge": PATCH**2 * 4096}
    processor = transformers.Qwen2VLImageProcessorPil(patch_size=PATCH // 2, merge_size=2, size=sizes)
    processor.save_pretrained(directory)


def picture(side: int, seed: int) -> bytes:
    """A JPEG file that becomes `side` by `side` tokens."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side * PATCH, side * PATCH, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def prompt_of(side: int) -> list[int]:
    """Text, an image and text."""
    return [*range(AROUND), *[PLACEHOLDER] * side**2, *range(AROUND)]


def load_runner(directory: Path, image_tokens: int) -> Runner:
    """A worker's runner."""
    runner = load_on_cpu(directory, image_tokens=image_tokens)
    runner.enter()
    return runner


class Answers:
    """Answers about one prompt, which go on step by step."""

    def __init__(self, runner: Runner, users: int, side: int, file: bytes) -> None:
        """`side`: of the image of each user; 0: a text as long."""
        self._runner, self._steps = runner, count(1)
        runner.reset()
        limits, prompt = runner.limits, prompt_of(side) if side else [7] * len(prompt_of(SIDES[0]))
        room = len(prompt) + 2 * STEPS + 1
        each = -(-room // limits.block_size)
        self._known = [len(prompt)] * users
        begun = time.perf_counter()
        for user in range(users):
            new = new_slot(limits, user, prompt, user * each, room)
            if side:
                new.images.append(
                    PromptImage(position=AROUND, tokens=side**2, rows=side, columns=side, data=file)
                )
            for start in range(0, len(prompt), CHUNK):
                size = min(CHUNK, len(prompt) - start)
                ends = start + size == len(prompt)
                self._execute([user], [start], [size], [int(ends)], [] if start else [new])
        self.first_token = time.perf_counter() - begun
        """Seconds until all of them have their first tokens."""

    def milliseconds(self) -> float:
        """Of one step."""
        users = list(range(len(self._known)))
        begun = time.perf_counter()
        self._execute(users, self._known, [1] * len(users), [1] * len(users), [])
        self._known = [known + 1 for known in self._known]
        return 1000 * (time.perf_counter() - begun)

    def _execute(
        self, slots: list[int], starts: list[int], counts: list[int], samples: list[int], news: list[NewSlot]
    ) -> None:
        rows = rows_of(slots, starts, counts, bytes(samples))
        result = self._runner.execute(StepPlan(step=next(self._steps), new_slots=news, rows=rows))
        if result.errors:
            raise RuntimeError(result.errors[0].message)


class OfTransformers:
    """The same by transformers."""

    def __init__(self, directory: Path) -> None:
        self._model = transformers.AutoModelForImageTextToText.from_pretrained(
            directory, dtype=torch.bfloat16
        ).eval()
        self._processor = transformers.AutoImageProcessor.from_pretrained(directory, backend="pil")

    @torch.inference_mode()
    def first_token(self, side: int, file: bytes) -> float:
        """Seconds."""
        begun, ids = time.perf_counter(), torch.tensor([prompt_of(side)])
        given = self._processor(images=[Image.open(io.BytesIO(file))], return_tensors="pt")
        kinds = (ids == PLACEHOLDER).int()
        self._model(input_ids=ids, mm_token_type_ids=kinds, **given, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - begun


def first_tokens(directory: Path, runner: Runner, rounds: int, seed: int) -> dict[str, dict[str, float]]:
    """Seconds of both, medians of the rounds, and how many times as long transformers takes."""
    other, taken = OfTransformers(directory), defaultdict[tuple[int, str], list[float]](list)
    for turn in range(rounds):
        for side in SIDES:
            file = picture(side, seed + turn)
            taken[side, "quire"].append(Answers(runner, 1, side, file).first_token)
            taken[side, "transformers"].append(other.first_token(side, file))
    found = dict[str, dict[str, float]]()
    for side in SIDES:
        both = {name: median(taken[side, name]) for name in ("quire", "transformers")}
        times = round(both["transformers"] / both["quire"], 2)
        found[f"{side**2} tokens"] = {name: round(each, 2) for name, each in both.items()} | {"times": times}
    return found


def steps(runners: dict[str, Runner], rounds: int, seed: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a step by users: behind a text with the tower and without, and behind images."""
    file, found = picture(SIDES[0], seed), dict[str, dict[str, float]]()
    for users in USERS:
        taken = defaultdict[str, list[float]](list)
        for _ in range(rounds):
            for name, runner, side in _kinds(runners):
                answers = Answers(runner, users, side, file)
                for _ in range(STEPS):  # steps are recorded
                    answers.milliseconds()
                taken[name] += [answers.milliseconds() for _ in range(STEPS)]
        found[f"{users} users"] = {name: round(median(each), 2) for name, each in taken.items()}
    return found


def _kinds(runners: dict[str, Runner]) -> Iterator[tuple[str, Runner, int]]:
    yield "text, without the tower", runners["without"], 0
    yield "text", runners["with"], 0
    yield "behind images", runners["with"], SIDES[0]


def main() -> None:
    command = parser(__doc__, "images.json")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        make(directory, options.seed)
        runners = {name: load_runner(directory, most) for name, most in (("with", 1024), ("without", 0))}
        found = {
            "seconds to the first token": first_tokens(
                directory, runners["with"], options.rounds, options.seed
            ),
            "milliseconds of a step": steps(runners, options.rounds, options.seed),
        }
    print(found)
    write(options.out, "images", options.seed, found)


if __name__ == "__main__":
    main()
