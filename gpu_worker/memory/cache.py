"""KV memory: its size in blocks, and the tensors that hold its pages."""

import math

import torch

from gpu_worker.errors import CapacityError, OutOfMemoryError
from gpu_worker.kernels.attention import Cache, KvFormat
from gpu_worker.kernels.kv_sizes import PageShape, StateShape
from gpu_worker.kernels.recurrence import StateCache
from gpu_worker.machine.huge_pages import Memory
from gpu_worker.machine.main_memory import available
from gpu_worker.models.config import Shape

CPU_SHARE = 0.25
"""Share of the free main memory that pages take on a CPU. Everything else on the machine uses it, too."""

GPU_SHARE = 0.92
"""Share that pages take of the GPU memory that weights and activations leave free."""

HOST_SHARE = 0.25
"""Share of the free main memory that holds swapped blocks, for all GPUs of the machine together."""


def bytes_per_block(config: Shape, block_size: int, kv: KvFormat) -> int:
    """Bytes of one block in all layers."""
    return block_size * token_bytes(config, kv) + state_bytes(config)


def token_bytes(config: Shape, kv: KvFormat) -> int:
    """Bytes of a token's keys and values in all layers."""
    return sum(kv.token_bytes(pages) for pages in config.pages)


def state_bytes(config: Shape) -> int:
    """Bytes of a block's states in all layers."""
    return sum(state.block_bytes for state in config.kept if isinstance(state, StateShape))


def blocks_within(memory: int, block_bytes: int, needed: int, useful: int) -> int:
    """Number of blocks that fit into `memory` bytes, at most `useful`.

    `needed`: blocks of one sequence of the longest length. Raises `CapacityError` if fewer fit.
    """
    blocks = min(memory // block_bytes, useful)
    if blocks < needed:
        raise CapacityError(
            f"KV memory of {memory / 2**20:.0f} MiB: {blocks} blocks, the longest sequence takes {needed} "
            f"({needed * block_bytes / 2**20:.0f} MiB): raise QUIRE_KV_MEMORY or lower QUIRE_MAX_MODEL_LEN"
        )
    return blocks


def make_caches(
    config: Shape, blocks: int, block_size: int, kv: KvFormat, device: torch.device
) -> list[Cache]:
    """Pages and states of `blocks` blocks by `config.kept`, uninitialized: only what was written is read.

    Raises `OutOfMemoryError` if the device does not have the memory.
    """
    memory = Memory()

    def take(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if device.type != "cpu":
            return torch.empty(shape, dtype=dtype, device=device)
        size = math.prod(shape)
        return memory.take(-(-size * dtype.itemsize // 4)).view(dtype)[:size].view(shape)

    def make(shape: PageShape | StateShape) -> Cache:
        if isinstance(shape, PageShape):
            return kv.allocate(shape, blocks, block_size, take)
        inputs = take((blocks, shape.inputs, shape.channels), torch.float32)
        sizes = (blocks, shape.heads, shape.key_size, shape.value_size)
        return StateCache(shape, block_size, inputs, take(sizes, torch.float32) if shape.heads else None)

    try:
        return [make(shape) for shape in config.kept]
    except (RuntimeError, OSError) as error:  # OutOfMemoryError is one; mapping memory raises the other
        line = f"no memory for {blocks} blocks of KV memory: lower QUIRE_KV_MEMORY"
        raise OutOfMemoryError(line) from error


def free_memory(device: torch.device) -> int:
    """Free bytes of a GPU's memory, or the share of free main memory that pages may take on a CPU."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return int(available() * CPU_SHARE)
