"""Steps with chosen rows, over pages with random contents, on the device."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from gpu_worker.kernels.attention import KvFormat, LayerCache, StepMetadata
from gpu_worker.kernels.kv_sizes import PageShape
from ops.bench.gpu_check.bench import Bench
from ops.bench.rig.pages import make_pages


@dataclass(frozen=True)
class Heads:
    """The heads of an attention layer."""

    query: int
    """Query heads."""
    kv: int
    """Key and value heads."""
    dim: int
    """Numbers of a head."""

    @property
    def pages(self) -> PageShape:
        """Shape of a token's keys and values in pages."""
        return PageShape(self.kv, self.dim, self.dim)


def make_step(rows: list[tuple[int, int]], block_size: int, bench: Bench) -> StepMetadata:
    """A step whose rows are (tokens, context), rows of one token first. Block ids are random."""
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


def pages_for(
    step: StepMetadata, shape: PageShape, block_size: int, kv: KvFormat, bench: Bench
) -> LayerCache:
    """Pages with random keys and values, for all blocks of the step's rows."""
    blocks = sum(-(-context // block_size) for context in step.context_lengths)
    return make_pages(kv, shape, blocks, block_size, bench.device, bench.generator)


def random(shape: tuple[int, ...], dtype: torch.dtype, bench: Bench) -> Tensor:
    """A tensor of normally distributed numbers on the device."""
    return torch.empty(shape, dtype=dtype, device=bench.device).normal_(generator=bench.generator)
