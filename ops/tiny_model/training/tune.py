"""The last part of the model's training: it learns to call functions, and keeps what it knew.

Two sorts of rows are in every batch. Conversations with functions teach the assistant's part alone. Other
documents hold the model to the distributions that it had before (Li and Hoiem 2016, "Learning without
Forgetting"), which takes fewer of them than their text alone would.
"""

import copy
import itertools
import random
from collections.abc import Iterable, Iterator

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from ops.tiny_model.training.corpus.calls import calls
from ops.tiny_model.training.data import rows
from ops.tiny_model.training.optimize import optimizer_of, rate_at, update
from ops.tiny_model.training.recipe import Tuning
from ops.tiny_model.training.tokenizer import ASSISTANT, BEGIN, END

IGNORED = -100
"""The label of a token that is not to be learned."""


def call_rows(tokenizer: Tokenizer, seed: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids (length,) and labels (length,) of conversations with functions, cut at `length` + 1."""
    rng = random.Random(seed)

    def tokens(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    while True:
        ids = tokens(BEGIN)
        learned = [False]
        conversation = calls(rng)
        while len(ids) <= length:
            message = next(conversation)
            head = f"<|{message['role']}|>"
            told = tokens(message["content"] + END)
            ids += tokens(head) + told
            learned += [False] + [head == ASSISTANT] * len(told)
        labels = [token if wanted else IGNORED for token, wanted in zip(ids, learned, strict=True)]
        yield torch.tensor(ids[:length]), torch.tensor(labels[1 : length + 1])


def losses(
    model: LlamaForCausalLM, before: LlamaForCausalLM, ids: Tensor, labels: Tensor, others: Tensor
) -> tuple[Tensor, Tensor]:
    """Two means, in nats a token.

    One is the cross entropy of the labels of `ids`, both (rows, length); the other how far `model` is from
    `before` (Kullback-Leibler) over the rows `others`.
    """
    hidden = model.model(input_ids=torch.cat([ids, others]), use_cache=False).last_hidden_state
    learned = labels != IGNORED
    called = nn.functional.cross_entropy(model.lm_head(hidden[: len(ids)][learned]), labels[learned])
    with torch.no_grad():
        wanted = before(input_ids=others, use_cache=False).logits.flatten(0, 1).log_softmax(-1)
    found = model.lm_head(hidden[len(ids) :]).flatten(0, 1).log_softmax(-1)
    return called, nn.functional.kl_div(found, wanted, reduction="batchmean", log_target=True)


def batches(tokenizer: Tokenizer, tuning: Tuning) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Token ids and labels of conversations with functions, and rows of other documents."""
    called = call_rows(tokenizer, tuning.seed, tuning.length)
    kept = itertools.cycle([rows(tokenizer, tuning.seed, tuning.length, sort) for sort in tuning.kept])
    while True:
        ids, labels = zip(*itertools.islice(called, tuning.call_rows), strict=True)
        others = [next(next(kept))[: tuning.length] for _ in range(tuning.kept_rows)]
        yield torch.stack(ids), torch.stack(labels), torch.stack(others)


def tune(model: LlamaForCausalLM, tokenizer: Tokenizer, phases: Iterable[Tuning]) -> None:
    """Train `model` in place, one phase after another, each with a new optimizer."""
    before = copy.deepcopy(model)
    for tuning in phases:
        optim, source = optimizer_of(model), batches(tokenizer, tuning)
        for step in range(tuning.steps):
            called, kept = losses(model, before, *next(source))
            torch.autograd.backward(tuning.call_weight * called + kept)
            update(model, optim, rate_at(tuning, step))
            if step % 20 == 0 or step == tuning.steps - 1:
                shown = f"loss {called.item():.4f} kept {kept.item():.4f}"
                print(f"{tuning.name} step {step} {shown}", flush=True)
