"""One model on several ranks (Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language
Models Using Model Parallelism").

The first product of attention and of an MLP is split by outputs, the second by inputs. Ranks exchange data
once for each, in an all-reduce of the second product's results:

                 ┌─ rank 0:  heads 0 to 3    out, of these ─┐
    hidden ──────┤                                          ├─ sum ──▶ residual, the same on all ranks
                 └─ rank 1:  heads 4 to 7    out, of these ─┘

Embedding and head are split by tokens of the vocabulary. Embeddings are summed over ranks, of which all but
one have zero. Logits are gathered. So all ranks sample from the same logits, bit by bit, and need not
exchange tokens.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.kernels.products import Linear, Unary
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.ranks import Ranks
from gpu_worker.models.weights import Weights


def rank_config(config: ModelConfig, count: int) -> ModelConfig:
    """The configuration of one of `count` ranks: whole heads, and a part of the dimensions of MLPs. Experts
    stay whole here: `Weights.share` has a rank's part of their dimensions.

    If there are fewer key heads than ranks, several ranks have the same key heads. Raises `ModelError` if the
    model cannot be split.
    """
    if count == 1:
        return config

    def part(number: int, what: str) -> int:
        if number % count:
            raise ModelError(f"QUIRE_TENSOR_PARALLEL={count} does not divide {number} {what}")
        return number // count

    if config.family.norms_all_heads:
        raise ModelError(f"QUIRE_TENSOR_PARALLEL={count}: {config.architecture} has norms over all heads")
    kv_heads = config.num_kv_heads
    if config.experts is not None:
        part(config.experts.intermediate_size, "intermediate dimensions of an expert")
        part(config.experts.shared_intermediate_size, "intermediate dimensions of the shared expert")
    recurrence = config.recurrence.part(count) if config.recurrence else None
    if config.recurrence is not None and recurrence is None:
        raise ModelError(f"QUIRE_TENSOR_PARALLEL={count}: the recurrent layers cannot be split")
    copies = count // kv_heads if kv_heads < count and count % kv_heads == 0 else 1
    if copies > 1 and kv_heads > 1 and config.family.by_head:
        raise ModelError(f"QUIRE_TENSOR_PARALLEL={count}: {config.architecture} has {kv_heads} key heads")
    return replace(
        config,
        num_heads=part(config.num_heads, "attention heads"),
        num_kv_heads=part(kv_heads * copies, "key heads"),
        key_copies=copies,
        intermediate_size=part(config.intermediate_size, "intermediate dimensions of the MLP"),
        recurrence=recurrence,
    )


def all_reduced(product: Linear, ranks: Ranks) -> Linear:
    """A product whose inputs are split, with results summed over ranks."""
    return product if ranks.count == 1 else AllReduced(product, ranks)


class AllReduced:
    """See `Linear`. Each rank has a part of every sum. Parts are added in the results' type."""

    def __init__(self, product: Linear, ranks: Ranks) -> None:
        self._product, self._ranks = product, ranks
        self.rows = product.rows

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._ranks.sum(self._product(hidden))

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        residual += self(hidden)


class Vocabulary:
    """Embedding and head, split by tokens: each rank has the rows of equally many tokens."""

    def __init__(self, size: int, ranks: Ranks) -> None:
        self._size, self._ranks = size, ranks
        self._each = -(-size // ranks.count)
        self._first = ranks.rank * self._each

    def read(self, weights: Weights, name: str, *columns: int) -> Tensor:
        """This rank's rows of a matrix [tokens, columns], or of a bias [tokens]. Rows past the last token
        repeat it, so that weights that are kept stay so; nobody reads them."""
        rows = slice(min(self._first, self._size - 1), min(self._first + self._each, self._size))
        found = rows.stop - rows.start
        table = weights.rows(name, rows, self._size, *columns)
        if found == self._each:
            return table
        return table[torch.arange(self._each, device=table.device).clamp(max=found - 1)]

    def embedding(self, rows: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """A look-up of any token's embedding. `rows`: looks up this rank's rows."""
        if self._ranks.count == 1:
            return rows

        def look_up(tokens: Tensor) -> Tensor:
            places = tokens - self._first
            other = (places < 0) | (places >= self._each)
            return self._ranks.sum(rows(places.masked_fill(other, 0)).masked_fill(other[:, None], 0))

        return look_up

    def logits(self, head: Unary) -> Unary:
        """A head with all logits. `head`: has the logits of this rank's tokens."""
        if self._ranks.count == 1:
            return head
        return lambda hidden: self._ranks.gather(head(hidden))[:, : self._size].contiguous()
