"""What fewer bits cost in quality: `python -m ops.bench.perplexity` writes `results/perplexity.json`.

The shipped model computes its held-out documents through the worker's own runner, its plans and pages; each
form of its numbers is set beside float32. Perplexity is that of `ops/tiny_model/training/evaluate.py`.
What rounding adds up to in a deeper model is seen in the logits of one with random weights (`shapes.py`).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer

from gpu_worker.kernels.rows import Rows
from gpu_worker.models.sight import Seen
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.batch import Batch
from gpu_worker.step.runner import Runner
from ops.bench import record
from ops.bench.command import parser
from ops.bench.load.workload import Question, Workload
from ops.bench.rig import shapes
from ops.bench.rig.accounting import tokens as tokens_of
from ops.bench.rig.in_process import InProcess
from ops.bench.rig.plans import prefill
from ops.model_directory.settings import SHIPPED_MODEL
from ops.tiny_model.training.evaluate import HELD_OUT_SEED, PROMPTS, held_out_ids

FORMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8 weights": {"quantization": "int8"},
    "int4 weights": {"quantization": "int4"},
    "int8 pages": {"kv_dtype": "int8"},
    "fp8 weights": {"quantization": "fp8", "kernels": "torch"},
    "int4 weights alone": {"quantization": "int4", "kernels": "torch"},
    "fp8 pages": {"kv_dtype": "fp8", "kernels": "torch"},
    "bfloat16, int8 weights": {"dtype": "bfloat16", "quantization": "int8"},
    "bfloat16, int4 weights": {"dtype": "bfloat16", "quantization": "int4"},
    "bfloat16, int8 pages": {"dtype": "bfloat16", "kv_dtype": "int8"},
    "bfloat16, int8 weights and pages": {"dtype": "bfloat16", "quantization": "int8", "kv_dtype": "int8"},
    "bfloat16, fp8 weights": {"dtype": "bfloat16", "quantization": "fp8", "kernels": "torch"},
    "bfloat16, fp8 pages": {"dtype": "bfloat16", "kv_dtype": "fp8", "kernels": "torch"},
    "bfloat16, fp8 weights and pages": {
        "dtype": "bfloat16",
        "quantization": "fp8",
        "kv_dtype": "fp8",
        "kernels": "torch",
    },
}
"""Settings of each variant. The others are compared with the first.

The fp8 variants use the PyTorch kernels, because the C++ kernels have no fp8. Their results are those of a
GPU, up to the order of sums. In the int4 variants the C++ kernels round activations to int8 as well. On a GPU
and in PyTorch int4 rounds the weights alone.
"""

DEEP, DEEP_TOKENS = "135m", 256
"""The model with random weights, and how many drawn tokens it computes."""

ANSWER = 48
"""Tokens of a greedy answer, at most."""


@dataclass(frozen=True)
class Reading:
    """What a model makes of some documents."""

    perplexity: float
    likeliest: Tensor
    """int64 [tokens]: the token that it expects most, at every place."""
    answers: list[list[int]]
    """Greedy ones to `PROMPTS`."""


def runner_of(form: dict[str, Any], model: Path = SHIPPED_MODEL) -> Runner:
    """A worker's runner with room for one document in one step."""
    given = {
        "device": "cpu",
        "dtype": "float32",
        "step_tokens": 2048,
        "max_slots": 16,
        "kv_memory": 256 << 20,
    }
    return load(WorkerSettings(**{"model": model, **given, **form}))


@torch.inference_mode()
def logits_of(runner: Runner, documents: Iterable[list[int]]) -> Iterator[Tensor]:
    """float32 [tokens, vocab_size] for the tokens of each document but its last."""
    forward, captured = runner.forward, list[Tensor]()

    def listen(batch: Batch, rows: Rows, seen: Seen | None = None) -> tuple[Tensor, Tensor]:
        hidden, slots = forward(batch, rows, seen)
        captured[:] = [hidden]
        return hidden, slots

    with mock.patch.object(runner, "forward", listen):
        for tokens in documents:
            runner.reset()
            result = runner.execute(prefill(runner.limits, tokens[:-1]))
            if result.errors:
                raise RuntimeError(result.errors[0].message)
            yield runner.model.logits(captured[0])


def read(runner: Runner, documents: list[list[int]], prompts: list[list[int]]) -> Reading:
    """Compute the documents and answer the prompts."""
    total, count, likeliest = 0.0, 0, []
    for tokens, logits in zip(documents, logits_of(runner, documents), strict=True):
        total += cross_entropy(logits, torch.tensor(tokens[1:]), reduction="sum").item()
        count += len(logits)
        likeliest.append(logits.argmax(-1))
    engine = InProcess(runner)
    asked = [engine.ask(Question(prompt, ANSWER)) for prompt in prompts]
    engine.run()
    return Reading(math.exp(total / count), torch.cat(likeliest), [each.tokens[0] for each in asked])


def perplexity(runner: Runner, most: int) -> float:
    """Of the shipped model over the first held-out documents, `most` at most."""
    documents = held_out_ids(AutoTokenizer.from_pretrained(SHIPPED_MODEL), "held_out")[:most]
    return read(runner, documents, []).perplexity


def compared(reading: Reading, reference: Reading) -> dict[str, float | int]:
    """What a form loses: perplexity over that of the reference, and how often both expect the same."""
    pairs = list(zip(reading.answers, reference.answers, strict=True))
    return {
        "perplexity": round(reading.perplexity, 4),
        "ratio": round(reading.perplexity / reference.perplexity, 5),
        "same_likeliest": round((reading.likeliest == reference.likeliest).double().mean().item(), 5),
        "answers": len(pairs),
        "same_answers": sum(one == other for one, other in pairs),
    }


def prompts_of(tokenizer: Any) -> list[list[int]]:
    """`PROMPTS` as the chat template writes them."""
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in PROMPTS
    ]


def logits_errors(seed: int) -> dict[str, float]:
    """How far each form's logits of drawn tokens are from the reference's, relative to those (2-norms)."""
    directory = shapes.made(DEEP)
    question = Workload(prompt_lengths=(DEEP_TOKENS,)).conversations(1, seed)[0][0]
    reference, *others = (
        next(logits_of(runner_of(form, directory), [tokens_of(question)])) for form in FORMS.values()
    )
    errors = [round(((logits - reference).norm() / reference.norm()).item(), 5) for logits in others]
    return dict(zip(list(FORMS)[1:], errors, strict=True))


def measure(held_out: str) -> dict[str, Any]:
    """Every form of the shipped model over a held-out set."""
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    documents, prompts = held_out_ids(tokenizer, held_out), prompts_of(tokenizer)
    found: dict[str, Any] = {"set": held_out, "tokens": sum(len(each) - 1 for each in documents), "forms": {}}
    reference: Reading | None = None
    for name, form in FORMS.items():
        reading = read(runner_of(form), documents, prompts)
        reference = reference or reading
        found["forms"][name] = compared(reading, reference)
        print(name, found["forms"][name], flush=True)
    return found


def main() -> None:
    """Measure and write the results."""
    command = parser(__doc__, "perplexity.json")
    command.add_argument("--set", default="held_out", help="of documents, as evaluate.py names them")
    options = command.parse_args()
    results = measure(options.set)
    results[f"logits_error_{DEEP}"] = logits_errors(HELD_OUT_SEED)
    print(results[f"logits_error_{DEEP}"])
    record.write(options.out, "perplexity", HELD_OUT_SEED, results)


if __name__ == "__main__":
    main()
