"""Steps of chosen rows over random pages, on the device."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from gpu_worker.kernels.interface import FP8, LayerCache, StepMetadata
from ops.bench.gpu_check.bench import Bench


@dataclass(frozen=True)
class Heads:
    """Query heads, key heads, their size."""

    query: int
    kv: int
    dim: int

    def kv_bytes(self, dtype: torch.dtype) -> int:
        """Of one position: its key and its value, in int8 with their scales."""
        return 2 * self.kv * (self.dim * dtype.itemsize + (4 if dtype == torch.int8 else 0))


def make_step(rows: list[tuple[int, int]], block_size: int, bench: Bench) -> StepMetadata:
    """Rows are (tokens, context), those of one token first; their blocks lie anywhere."""
    lengths, contexts = zip(*rows, strict=True)
    counts = [-(-context // block_size) for context in contexts]
    blocks = torch.randperm(sum(counts), device=bench.device, generator=bench.generator).int()
    tables = torch.zeros((len(rows), max(counts)), dtype=torch.int32, device=bench.device)
    positions, entries = [], []
    for row, (end, count) in enumerate(zip(accumulate(counts), counts, strict=True)):
        tables[row, :count] = blocks[end - count : end]
        own = torch.arange(contexts[row] - lengths[row], contexts[row], device=bench.device)
        positions.append(own)
        entries.append(tables[row, own // block_size].long() * block_size + own % block_size)
    return StepMetadata(
        decodes=sum(length == 1 for length in lengths),
        query_lengths=lengths,
        context_lengths=contexts,
        query_starts=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=bench.device),
        contexts=torch.tensor(contexts, dtype=torch.int32, device=bench.device),
        block_tables=tables,
        positions=torch.cat(positions),
        kv_entries=torch.cat(entries),
    )


def make_pages(
    step: StepMetadata, heads: Heads, block_size: int, dtype: torch.dtype, bench: Bench
) -> LayerCache:
    """Random keys and values in as many blocks as the step's rows have."""
    blocks = sum(-(-context // block_size) for context in step.context_lengths)
    shape = (blocks, heads.kv, block_size, heads.dim)
    if dtype == FP8:
        keys, values = (random(shape, torch.bfloat16, bench).mul_(64).to(FP8) for _ in range(2))
        worth = torch.full((2, heads.kv), 1 / 64, device=bench.device)
        return LayerCache(keys, values, head_scales=worth)
    if dtype != torch.int8:
        return LayerCache(*(random(shape, dtype, bench) for _ in range(2)))
    numbers = torch.empty((2, *shape), dtype=torch.int8, device=bench.device)
    numbers.random_(-127, 128, generator=bench.generator)
    scales = torch.full((2, *shape[:3]), 1 / 64, device=bench.device)
    return LayerCache(*numbers, *scales)


def make_latent_pages(
    step: StepMetadata, rank: int, size: int, block_size: int, dtype: torch.dtype, bench: Bench
) -> LayerCache:
    """Random rows of `size` numbers, the first `rank` of which are values."""
    pages = make_pages(step, Heads(1, 1, size), block_size, dtype, bench)
    scales, worth = pages.key_scales, pages.head_scales
    return LayerCache(pages.keys, pages.keys[..., :rank], scales, scales, shared=True, head_scales=worth)


def random(shape: tuple[int, ...], dtype: torch.dtype, bench: Bench) -> Tensor:
    """Normally distributed."""
    return torch.empty(shape, dtype=dtype, device=bench.device).normal_(generator=bench.generator)
