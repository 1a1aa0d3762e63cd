"""Embedding and head of a decoder."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from gpu_worker.kernels.codes import CodedWeight
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Unary
from gpu_worker.kernels.reference.kept import NARROW
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.split import Vocabulary
from gpu_worker.models.weights import Weights


def base_of(config: ModelConfig, weights: Weights) -> Weights:
    """The tensors of everything but the head."""
    base = config.family.names.base
    return weights.under(base) if weights.has_any(base) else weights


def has_head(config: ModelConfig, weights: Weights) -> bool:
    """Whether the head is tied to the embedding, or has any tensor of its own."""
    return config.tie_word_embeddings or weights.has_any(f"{config.family.names.head}.")


def has_another_head(config: ModelConfig, weights: Weights) -> bool:
    """Whether the checkpoint has a head that is not the embedding, although config.json ties the two.

    Where one of them is quantized, their numbers are not compared: rounding alone makes a difference.
    """
    if not (config.tie_word_embeddings and config.has_lm_head):
        return False
    head, base = f"{config.family.names.head}.weight", base_of(config, weights)
    names, checkpoint = (head, f"{base.prefix}{config.family.names.embedding}.weight"), weights.checkpoint
    quantized = [checkpoint.is_quantized(name) for name in names]
    if not all(each or name in checkpoint.names() for name, each in zip(names, quantized, strict=True)):
        return False
    return any(quantized) or not checkpoint.equal(*names)


def embedding(config: ModelConfig, base: Weights) -> Callable[[Tensor], Tensor]:
    """The look-up of a model that has no language model's head."""
    names, words = config.family.names, Vocabulary(config.vocab_size, base.ranks)
    plain = replace(base, keeps=frozenset())
    return words.embedding(words.read(plain, f"{names.embedding}.weight", config.hidden_size).__getitem__)


def read_score(config: ModelConfig, weights: Weights) -> Tensor:
    """The weight of the classification head, which every rank has whole."""
    exact = replace(weights, keeps=frozenset(), dtype=torch.float32)
    return exact.read(f"{config.family.names.score}.weight", config.num_labels, config.hidden_size)


def embedding_and_head(
    config: ModelConfig, base: Weights, weights: Weights, kernels: Kernels
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """The embedding's look-up and the head. They share a matrix if they are tied."""
    names, words = config.family.names, Vocabulary(config.vocab_size, weights.ranks)
    # These have no head, and those of int8 and fp8 no embedding of its own.
    kept = base.keeps - NARROW if config.tie_word_embeddings else base.keeps & {"coded"}
    table = words.read(replace(base, keeps=kept), f"{names.embedding}.weight", config.hidden_size)
    biased = config.family.head_bias and (not config.tie_word_embeddings or weights.has(f"{names.head}.bias"))
    bias = words.read(weights, f"{names.head}.bias") if biased else None
    if config.tie_word_embeddings:
        tied = kernels.linear(table, bias, dtype=torch.float32, keeps_rows=True)
        return words.embedding(tied.rows), _logits(config, words.logits(tied), kernels)
    wide = replace(weights, keeps=weights.keeps - NARROW)
    rows = words.read(wide, f"{names.head}.weight", config.hidden_size)
    head = words.logits(kernels.linear(rows, bias, dtype=torch.float32))
    coded = kernels.linear(table, keeps_rows=True).rows if isinstance(table, CodedWeight) else None
    return words.embedding(coded or table.__getitem__), _logits(config, head, kernels)


def _logits(config: ModelConfig, head: Unary, kernels: Kernels) -> Callable[[Tensor], Tensor]:
    softcap, scale = config.logit_softcap, config.logit_scale
    if softcap:

        def capped(hidden: Tensor) -> Tensor:
            logits = head(hidden).div_(softcap)
            kernels.activate(logits, "tanh")
            return logits.mul_(softcap)

        return capped
    if scale != 1.0:
        return lambda hidden: head(hidden).mul_(scale)
    return head


def rough_head(config: ModelConfig, weights: Weights, kernels: Kernels) -> Callable[[Tensor], Tensor] | None:
    """A head for drafts, which is less exact and reads less memory. None: the back end has none."""
    if kernels.rough is None:
        return None
    names, words = config.family.names, Vocabulary(config.vocab_size, weights.ranks)
    plain = replace(weights, keeps=frozenset())
    at, name = (
        (base_of(config, plain), names.embedding) if config.tie_word_embeddings else (plain, names.head)
    )
    rows = words.read(at, f"{name}.weight", config.hidden_size)
    return _logits(config, words.logits(kernels.rough(rows)), kernels)
