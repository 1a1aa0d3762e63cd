"""Held-out perplexities and shares of right calls, written to perplexity.json, and sample answers.

    python -m ops.tiny_model.training.evaluate

The held-out documents come from the same generator as the training text, and none of them was
trained on. Perplexity is exp of the mean cross entropy of all tokens after the first, special
tokens included, each document on its own from its <|begin|>.
"""

import argparse
import itertools
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from ops.tiny_model.training.corpus import Sort, documents
from ops.tiny_model.training.corpus.calls import held_out_questions
from ops.tiny_model.training.tokenizer import ASSISTANT, END, render

HERE = Path(__file__).parent
MODELS = HERE.parent
RECORD = HERE / "perplexity.json"
HELD_OUT_SEED = 7
# Name of the set -> (sort of documents, number of documents).
SETS: dict[str, tuple[Sort, int]] = {
    "held_out": ("mixed", 400),
    "held_out_few": ("mixed", 40),
    "held_out_small": ("small", 200),
    "held_out_long": ("long", 12),
}
CALLS = 200
"""Questions that functions answer, of which none was trained on."""
PROMPTS = (
    "Tell me a story about a fox.",
    "Could you write a short story about an owl and a baker?",
    "Tell me a very short story about a robot.",
    "Tell me a story about a giraffe.",
    "Write a story about a lost key.",
    "Who are you?",
    "List five fruits.",
    "What is 7 + 5?",
    "Give me JSON for a person named Mira.",
    "How does paged attention work?",
    'How do you say "thank you" in Japanese?',
    "Count from 3 to 9.",
    "Write a poem about the sea.",
    "Hello!",
    "What is the opposite of hot?",
)


def held_out_ids(tokenizer: Any, name: str) -> list[list[int]]:
    """Token ids of the documents of a held-out set."""
    sort, count = SETS[name]
    chosen = itertools.islice(documents(HELD_OUT_SEED, held_out=True, sort=sort), count)
    longest = tokenizer.model_max_length
    return [tokenizer(render(doc), add_special_tokens=False)["input_ids"][:longest] for doc in chosen]


@torch.inference_mode()
def perplexity(model: Any, sequences: list[list[int]]) -> float:
    """exp(mean cross entropy) over the tokens of all sequences."""
    total, count = 0.0, 0
    for ids in sequences:
        logits = model(torch.tensor([ids[:-1]])).logits[0]
        total += nn.functional.cross_entropy(logits.float(), torch.tensor(ids[1:]), reduction="sum").item()
        count += len(ids) - 1
    return math.exp(total / count)


@torch.inference_mode()
def right_calls(model: Any, tokenizer: Any, count: int = CALLS) -> tuple[float, float]:
    """Of greedy answers to held-out questions: the shares that call the right function, and rightly call it.

    An answer is right if each of its tokens is the likeliest one after the right tokens before it.
    """
    named = whole = 0
    for asked, call in itertools.islice(held_out_questions(HELD_OUT_SEED), count):
        prompt, text = render(asked) + ASSISTANT, call.text
        name = text[: text.index(call.function.name) + len(call.function.name)]
        before, until, ids = (
            tokenizer(part, add_special_tokens=False)["input_ids"]
            for part in (prompt, prompt + name, prompt + text + END)
        )
        likeliest = model(torch.tensor([ids[:-1]])).logits[0].argmax(-1).tolist()
        right = [found == wanted for found, wanted in zip(likeliest, ids[1:], strict=True)]
        named += all(right[len(before) - 1 : len(until) - 1])
        whole += all(right[len(before) - 1 :])
    return named / count, whole / count


@torch.inference_mode()
def answer(
    model: Any, tokenizer: Any, prompt: str, greedy: bool = True, limit: int = 400
) -> tuple[str, bool]:
    """The answer to one question in chat, and whether the model ended it by itself."""
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    settings: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None} if greedy else {}
    output: Tensor = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, **settings
    )
    new = output[0, ids.shape[1] :].tolist()
    return tokenizer.decode(new, skip_special_tokens=True), new[-1] == tokenizer.eos_token_id


def load(name: str) -> tuple[Any, Any]:
    """(model in float32, tokenizer) of the committed directory `name`: "model" or "draft"."""
    model: Any = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32)
    tokenizer: Any = AutoTokenizer.from_pretrained(MODELS / name)
    return model.eval(), tokenizer


def measure(name: str) -> dict[str, float | int]:
    """Number of parameters, perplexity on every held-out set, and of the large model also `right_calls`."""
    model, tokenizer = load(name)
    measured: dict[str, float | int] = {"parameters": sum(p.numel() for p in model.parameters())}
    for held_out in SETS:
        sequences = held_out_ids(tokenizer, held_out)
        measured[held_out] = round(perplexity(model, sequences), 4)
        measured[f"{held_out}_tokens"] = sum(len(ids) - 1 for ids in sequences)
    if name == "model":
        measured["right_functions"], measured["right_calls"] = right_calls(model, tokenizer)
    return measured


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", action="store_true", help="print answers to PROMPTS, write nothing")
    args = parser.parse_args()
    if not args.samples:
        record = {"held_out_seed": HELD_OUT_SEED, "model": measure("model"), "draft": measure("draft")}
        RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        print(json.dumps(record, indent=2))
        return
    model, tokenizer = load("model")
    torch.manual_seed(0)
    for prompt, greedy in itertools.product(PROMPTS, (True, False)):
        text, ended = answer(model, tokenizer, prompt, greedy)
        print(f"> {prompt} [{'greedy' if greedy else 'sampled'}, {'ended' if ended else 'CUT'}]\n{text}\n")


if __name__ == "__main__":
    main()
