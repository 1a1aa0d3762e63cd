"""Normalization in all the places where families have it."""

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Linear, Norm, Unary
from gpu_worker.kernels.reference.kernels import normalize_each
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.loader import Weights


def read_norm(config: ModelConfig, weights: Weights, kernels: Kernels, name: str, size: int) -> Norm:
    """The norm that a family has, with the weights of that name. Raises `ModelError`."""
    eps, weight = config.norm_eps, f"{name}.weight"
    match config.family.norm:
        case "rms":
            return kernels.norm(weights.read(weight, size), eps)
        case "wide":
            return kernels.norm(weights.of(torch.float32).read(weight, size), eps)
        case "shifted":
            return kernels.norm(1 + weights.of(torch.float32).read(weight, size), eps)
        case "layer":
            bias = weights.read(f"{name}.bias", size) if weights.has(f"{name}.bias") else None
            return LayerNorm(weights.read(weight, size), bias, eps)
        case "bare":
            return LayerNorm(torch.ones(size, dtype=weights.dtype, device=weights.device), None, eps)


def unchanged(hidden: Tensor) -> Tensor:
    """Where a family has no norm."""
    return hidden


class LayerNorm:
    """Ba et al. 2016, in plain PyTorch on every device."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self._weight, self._bias, self._eps = weight, bias, eps

    def __call__(self, hidden: Tensor) -> Tensor:
        return layer_norm(hidden, self._weight.shape, self._weight, self._bias, self._eps)

    def each(self, rows: Tensor) -> None:
        """See `Norm.each`."""
        normalize_each(self, len(self._weight), rows)


class HeadNorms:
    """Norms of queries and keys before they are rotated, in place.

    Each head by itself (Henry et al. 2020), or all heads of a token as one row, as in OLMo 2.
    """

    def __init__(self, query: Norm, key: Norm, queries: int, keys: int) -> None:
        """`queries`, `keys`: numbers of a token's."""
        self._query, self._key = query, key
        self._queries, self._keys = slice(0, queries), slice(queries, queries + keys)

    def __call__(self, qkv: Tensor) -> Tensor:
        """Of [tokens, queries + keys + values]; the same tensor."""
        self._query.each(qkv[:, self._queries])
        self._key.each(qkv[:, self._keys])
        return qkv


class NormedSum:
    """A product that is normalized before it is added to the stream. See `Linear.add_to`."""

    def __init__(self, product: Linear, norm: Unary) -> None:
        self._product, self._norm = product, norm

    def add_to(self, hidden: Tensor, residual: Tensor) -> None:
        residual += self._norm(self._product(hidden))
