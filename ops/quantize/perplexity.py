"""A model's perplexity on a text: exp of the mean negative log-likelihood of its tokens.

The text is cut into pieces of `PIECE` tokens. Each is computed by itself, as a worker computes a prompt.
"""

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gpu_worker.kernels.rows import Rows
from gpu_worker.models.config import read_config
from gpu_worker.models.sight import Seen
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.startup.warmup import prompt_step
from gpu_worker.step.batch import Batch
from gpu_worker.step.runner import Runner
from proto import arrays
from tokenizer_svc.model.tokenizer import TextModel

PIECE = 512


def perplexity(model: Path, text: str) -> float:
    """Of a model directory, with a worker's settings.

    Raises what `load` raises, and `ValueError` if the text has fewer than two tokens, or the model is a
    classifier.
    """
    tokens = TextModel.load(model).encode(text, special=False)
    if len(tokens) < 2:
        raise ValueError("the text has fewer than two tokens")
    config = read_config(model)
    if config.num_labels:
        raise ValueError("a classifier has no perplexity")
    longest = min(PIECE, config.max_position)
    limits = {"max_slots": 1, "max_model_len": longest, "step_tokens": longest}
    settings = WorkerSettings.read().model_copy(update={"model": model, "draft_model": None, **limits})
    return math.exp(_mean_loss(load(settings), tokens, longest))


@torch.inference_mode()
def _mean_loss(runner: Runner, tokens: list[int], size: int) -> float:
    total, count = 0.0, 0
    hidden = _listen(runner)
    for first in range(0, len(tokens) - 1, size - 1):
        piece = tokens[first : first + size]
        runner.reset()
        result = runner.execute(prompt_step(runner.limits, arrays.pack(piece[:-1])))
        if result.errors:
            raise RuntimeError(result.errors[0].message)
        logits = runner.model.logits(hidden[-1])
        expected = torch.tensor(piece[1:], device=logits.device)
        total += cross_entropy(logits, expected, reduction="sum").item()
        count += len(expected)
    return total / count


def _listen(runner: Runner) -> list[Tensor]:
    """A list whose last entry is the hidden states of the last step."""
    forward, hidden = runner.forward, list[Tensor]()

    def listen(batch: Batch, rows: Rows, seen: Seen | None = None) -> tuple[Tensor, Tensor]:
        found, slots = forward(batch, rows, seen)
        hidden[:] = [found]
        return found, slots

    runner.forward = listen  # type: ignore[assignment]
    return hidden
