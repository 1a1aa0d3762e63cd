"""Norms of all families: of the residual, of queries and keys, and of results before they are added."""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Linear, Norm, Unary
from gpu_worker.kernels.reference.kernels import normalize_each
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.weights import Weights


def read_norm(
    config: ModelConfig,
    weights: Weights,
    kernels: Kernels,
    name: str,
    size: int,
    order: Tensor | None = None,
) -> Norm:
    """A norm of the family's kind, with the weights of tensor `name`. Raises `ModelError`.

    `order`: int64 [size], the checkpoint's dimension at each place of a row. None: the order is the same.
    """

    def read(what: str, dtype: torch.dtype = weights.dtype) -> Tensor:
        found = weights.of(dtype).read(f"{name}.{what}", size)
        return found if order is None else found[order.to(found.device)]

    eps = config.norm_eps
    match config.family.norm:
        case "rms":
            return kernels.norm(read("weight"), eps)
        case "rms_float32":
            return kernels.norm(read("weight", torch.float32), eps)
        case "rms_one_plus":
            return kernels.norm(1 + read("weight", torch.float32), eps)
        case "layer":
            return LayerNorm(read("weight"), read("bias") if weights.has(f"{name}.bias") else None, eps)
        case "layer_without_weight":
            return LayerNorm(torch.ones(size, dtype=weights.dtype, device=weights.device), None, eps)


def identity(hidden: Tensor) -> Tensor:
    """Takes the place of a norm that a family does not have."""
    return hidden


class LayerNorm:
    """Layer normalization (Ba et al. 2016), in plain PyTorch on every device."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self._weight, self._bias, self._eps = weight, bias, eps

    def __call__(self, hidden: Tensor) -> Tensor:
        return layer_norm(hidden, self._weight.shape, self._weight, self._bias, self._eps)

    def each(self, rows: Tensor) -> None:
        """See `Norm.each`."""
        normalize_each(self, len(self._weight), rows)


class QueryKeyNorm:
    """QK-norm: norms of queries and keys before they are rotated, in place.

    Each head is normalized by itself (Henry et al. 2020), or all heads of a token as one row, as in OLMo 2.
    """

    def __init__(self, query: Norm, key: Norm, queries: int, keys: int) -> None:
        """`queries`, `keys`: dimensions of a token's queries and keys, of all heads together."""
        self._query, self._key = query, key
        self._queries, self._keys = slice(0, queries), slice(queries, queries + keys)

    def __call__(self, qkv: Tensor) -> Tensor:
        """`qkv`: [tokens, queries + keys + values]. Returns the same tensor."""
        self._query.each(qkv[:, self._queries])
        self._key.each(qkv[:, self._keys])
        return qkv


class PostNorm:
    """A product whose result is normalized before it is added to the residual. See `Linear.add_to`."""

    def __init__(self, product: Linear, norm: Unary) -> None:
        self._product, self._norm = product, norm

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        residual += self._norm(self._product(hidden))
