"""One model on several ranks (Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language
Models Using Model Parallelism").

Each block's first product is split by its outputs, its second by its inputs, so that the ranks meet once a
block, where they add up what each has to say to the stream:

                 ┌─ rank 0:  heads 0 to 3    out, of these ─┐
    hidden ──────┤                                          ├─ sum ──▶ residual, alike on all ranks
                 └─ rank 1:  heads 4 to 7    out, of these ─┘

Embeddings and head are split by tokens: embeddings are added up, of which all but one are zero, and logits
put side by side. So all ranks sample from the same logits, bit by bit, and need not tell each other what.
"""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor
from torch.nn.functional import pad

from gpu_worker.errors import ModelError
from gpu_worker.kernels.products import Linear, Unary
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.loader import Weights
from gpu_worker.models.ranks import Ranks


def share_of(config: ModelConfig, count: int) -> ModelConfig:
    """The configuration of one of `count` ranks: whole heads, and a part of the dimensions of MLPs and
    experts.

    Key heads that are fewer than the ranks are on several of them. Raises `ModelError` if it cannot be split.
    """
    if count == 1:
        return config

    def part(number: int, what: str) -> int:
        if number % count:
            raise ModelError(f"QUIRE_TENSOR_PARALLEL={count} does not divide {number} {what}")
        return number // count

    if config.family.norms_whole:
        raise ModelError(f"QUIRE_TENSOR_PARALLEL={count}: {config.architecture} has norms over all heads")
    kv_heads, experts = config.num_kv_heads, config.experts
    if experts is not None:
        experts = replace(
            experts,
            intermediate_size=part(experts.intermediate_size, "intermediate dimensions of an expert"),
            shared_intermediate_size=part(
                experts.shared_intermediate_size, "intermediate dimensions of the shared expert"
            ),
        )
    copies = count // kv_heads if kv_heads < count and count % kv_heads == 0 else 1
    if copies > 1 and kv_heads > 1 and config.family.by_head:
        raise ModelError(f"QUIRE_TENSOR_PARALLEL={count}: {config.architecture} has {kv_heads} key heads")
    return replace(
        config,
        num_heads=part(config.num_heads, "attention heads"),
        num_kv_heads=part(kv_heads * copies, "key heads"),
        key_copies=copies,
        intermediate_size=part(config.intermediate_size, "intermediate dimensions of the MLP"),
        experts=experts,
    )


def summed(product: Linear, ranks: Ranks) -> Linear:
    """A product whose inputs are split, as all ranks have it together."""
    return product if ranks.count == 1 else Summed(product, ranks)


class Summed:
    """See `Linear`: each rank has a part of every sum. Parts are added in the type that they are given in."""

    def __init__(self, product: Linear, ranks: Ranks) -> None:
        self._product, self._ranks = product, ranks
        self.rows = product.rows

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._ranks.sum(self._product(hidden))

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        residual += self(hidden)


class Vocabulary:
    """The tokens, of which each rank has as many: their embeddings, and their rows of the head."""

    def __init__(self, size: int, ranks: Ranks) -> None:
        self._size, self._ranks = size, ranks
        self._each = -(-size // ranks.count)
        self._first = ranks.rank * self._each

    def read(self, weights: Weights, name: str, *columns: int) -> Tensor:
        """This rank's rows of a matrix [tokens, columns], or of a bias; zero past the last token."""
        rows = slice(min(self._first, self._size), min(self._first + self._each, self._size))
        table = weights.rows(name, rows, self._size, *columns)
        missing = self._each - len(table)
        return pad(table, (0, 0) * len(columns) + (0, missing)) if missing else table

    def embedding(self, rows: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """What looks up any token's embedding, made of what looks up this rank's rows."""
        if self._ranks.count == 1:
            return rows

        def look_up(tokens: Tensor) -> Tensor:
            places = tokens - self._first
            other = (places < 0) | (places >= self._each)
            return self._ranks.sum(rows(places.masked_fill(other, 0)).masked_fill(other[:, None], 0))

        return look_up

    def logits(self, head: Unary) -> Unary:
        """What gives all logits, made of what gives those of this rank's tokens."""
        if self._ranks.count == 1:
            return head
        return lambda hidden: self._ranks.gather(head(hidden))[:, : self._size].contiguous()
