"""Copies of whole blocks, in plain PyTorch."""

from collections.abc import Sequence

from torch import Tensor

from gpu_worker.kernels.attention import Cache


def copy_blocks(caches: Sequence[Cache], sources: Tensor, targets: Tensor) -> None:
    """See `Copies`."""
    for cache in caches:
        for tensor in cache.tensors():
            tensor[targets] = tensor[sources]
