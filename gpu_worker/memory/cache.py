"""KV memory: how much of it there is, and the pages that it is cut into."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_worker.errors import CapacityError
from gpu_worker.kernels.interface import FP8, LayerCache
from gpu_worker.machine.huge_pages import Memory
from gpu_worker.machine.main_memory import available
from gpu_worker.models.config import Shape

CPU_SHARE = 0.25
"""Part of the free memory that pages take on a CPU, which the model shares with everything else."""

GPU_SHARE = 0.92
"""Part of what weights and activations leave that pages take on a GPU."""

HOST_SHARE = 0.25
"""Part of the free main memory that takes what pages have no room for, of all GPUs of the machine."""

SCALE = torch.float32
"""Of the scales of pages of int8; see `LayerCache`."""


def bytes_per_block(config: Shape, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block in all layers, keys and values; of int8 with their scales."""
    pages, scale = config.pages, SCALE.itemsize if dtype == torch.int8 else 0
    token = pages.heads * sum(size * dtype.itemsize + scale for size in pages.rows)
    return config.num_layers * token * block_size


def blocks_within(memory: int, block_bytes: int, needed: int, useful: int) -> int:
    """Blocks that fit into `memory` bytes, no more than are `useful`.

    Raises `CapacityError` if those are fewer than the `needed` ones of one longest sequence.
    """
    blocks = min(memory // block_bytes, useful)
    if blocks < needed:
        raise CapacityError(
            f"KV memory of {memory / 2**20:.0f} MiB: {blocks} blocks, the longest sequence takes {needed} "
            f"({needed * block_bytes / 2**20:.0f} MiB): raise QUIRE_KV_MEMORY or lower QUIRE_MAX_MODEL_LEN"
        )
    return blocks


def make_caches(
    config: Shape, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[LayerCache]:
    """Pages for every layer, uninitialized: attention reads only what was written. A number of fp8 is worth
    itself until somebody knows better: see `calibration.py`.

    Raises `CapacityError` if the device does not have the memory.
    """
    pages = config.pages
    rows = (blocks, pages.heads, block_size)
    memory = Memory()

    def taken(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if device.type != "cpu":
            return torch.empty(shape, dtype=dtype, device=device)
        size = math.prod(shape)
        return memory.take(-(-size * dtype.itemsize // 4)).view(dtype)[:size].view(shape)

    def layer() -> LayerCache:
        kept = [taken((*rows, size), dtype) for size in pages.rows]
        scales = [taken(rows, SCALE) for _ in kept] if dtype == torch.int8 else [None]
        worth = torch.ones((2, pages.heads), device=device) if dtype == FP8 else None
        # What is shared has one of each: the values are its first numbers.
        values = kept[-1][..., : pages.value_size]
        return LayerCache(kept[0], values, scales[0], scales[-1], shared=pages.shared, head_scales=worth)

    try:
        return [layer() for _ in range(config.num_layers)]
    except (RuntimeError, OSError) as error:  # OutOfMemoryError is one; mapping memory raises the other
        raise CapacityError(f"no memory for {blocks} blocks of KV memory: lower QUIRE_KV_MEMORY") from error


def copy_blocks(caches: Sequence[LayerCache], sources: Tensor, targets: Tensor) -> None:
    """Copy whole blocks within every layer; block numbers int64 [n], no target among the sources."""
    for cache in caches:
        for tensor in cache.tensors():
            tensor[targets] = tensor[sources]


def free_memory(device: torch.device) -> int:
    """Bytes that the device has left."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return int(available() * CPU_SHARE)
