"""Ragged steps over shuffled, poisoned pages, and what attention over them has to give, in float64."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.kernels.attention import FULL_ATTENTION, AttentionSpec, KvFormat, LayerCache, StepMetadata
from gpu_worker.kernels.cpu import kv as cpu
from gpu_worker.kernels.kv_sizes import AUTO, PageShape
from gpu_worker.kernels.reference.kv import FORMATS

NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Paged:
    """One layer of a step: every row's keys and values, and the same in pages. Equal is what is the same."""

    step: StepMetadata
    plain: LayerCache
    """Pages that lie row by row."""
    cache: LayerCache | None
    """As the C++ kernels lay them out; None: they do not have the format."""
    query: Tensor
    """[tokens, heads, head_dim]."""
    keys: list[Tensor]
    """Of each row, float64 [context, kv_heads, head_dim]."""
    values: list[Tensor]

    def rows(self) -> list[slice]:
        """Each row's tokens."""
        starts = self.step.query_starts.tolist()
        return [slice(start, end) for start, end in pairwise(starts)]


@dataclass(frozen=True)
class Heads:
    """Query heads, key heads, their size."""

    query: int
    kv: int
    dim: int
    rank: int = 0
    """Values are the first `rank` numbers of keys, in the same pages. 0: values have pages of their own."""


def make_step(rows: list[tuple[int, int]], block_size: int, generator: torch.Generator) -> StepMetadata:
    """Rows are (tokens, context); their blocks lie anywhere, with others that nobody uses between them."""
    lengths, contexts = zip(*rows, strict=True)
    counts = [-(-context // block_size) for context in contexts]
    blocks = torch.randperm(2 * sum(counts) + 1, generator=generator).int()
    # What stands beyond a row's blocks must not be followed.
    tables = torch.full((len(rows), max(counts) + 1), 1 << 30, dtype=torch.int32)
    positions, entries, used = [], [], 0
    for row, (length, context) in enumerate(rows):
        tables[row, : counts[row]] = blocks[used : used + counts[row]]
        used += counts[row]
        own = torch.arange(context - length, context)
        positions.append(own)
        entries.append(tables[row, own // block_size].long() * block_size + own % block_size)
    return StepMetadata(
        decodes=next((row for row, length in enumerate(lengths) if length > 1), len(rows)),
        query_lengths=lengths,
        context_lengths=contexts,
        query_starts=torch.tensor([0, *lengths]).cumsum(0).int(),
        contexts=torch.tensor(contexts, dtype=torch.int32),
        block_tables=tables,
        positions=torch.cat(positions),
        kv_entries=torch.cat(entries),
    )


def recorded(paged: Paged, tokens: int, rows: int) -> tuple[Tensor, StepMetadata]:
    """The same queries and step padded to a number of tokens and rows, as in a recorded step."""
    step, count = paged.step, len(paged.step.contexts)
    longest = 2 * max(step.context_lengths)
    filler = tokens - len(paged.query)
    query = torch.cat((paged.query, paged.query.new_full((filler, *paged.query.shape[1:]), NAN)))
    starts = torch.cat((step.query_starts, torch.full((rows + 1 - count,), len(paged.query))))
    starts[-1] = tokens
    return query, StepMetadata(
        decodes=0,
        query_lengths=(tokens,) * (rows + 1),
        context_lengths=(longest,) * (rows + 1),
        query_starts=starts.int(),
        contexts=F.pad(step.contexts, (0, rows + 1 - count)),
        block_tables=F.pad(step.block_tables, (0, 0, 0, rows + 1 - count), value=1 << 30),
        positions=F.pad(step.positions, (0, filler)),
        kv_entries=F.pad(step.kv_entries, (0, filler), value=-1),
        recorded=True,
    )


def reference_format(name: str, dtype: torch.dtype) -> KvFormat:
    """As `Kernels.kv_format`."""
    return FORMATS[name](dtype)


def make_paged(
    rows: list[tuple[int, int]],
    heads: Heads,
    block_size: int,
    dtype: torch.dtype,
    kv: str = AUTO,
    seed: int = 0,
    kv_format: Callable[[str, torch.dtype], KvFormat] = reference_format,
) -> Paged:
    """Random queries, keys and values; every entry that belongs to no position is NaN.

    `kv`: format of the pages. The rows' keys and values are what it has left of them. `kv_format`: of the
    back end that reads `plain`.
    """
    generator = torch.Generator().manual_seed(seed)
    step = make_step(rows, block_size, generator)
    counts = [-(-context // block_size) for _, context in rows]
    shape = PageShape(heads.kv, heads.dim, heads.rank or heads.dim, shared=heads.rank > 0)
    cache = nowhere(kv_format(kv, dtype), shape, 2 * sum(counts) + 1, block_size)
    written: tuple[list[Tensor], list[Tensor]] = ([], [])
    for row, (_, context) in enumerate(rows):
        at = torch.arange(context)
        places = (step.block_tables[row, at // block_size].long(), slice(None), at % block_size)
        drawn = torch.randn(2, context, heads.kv, heads.dim, generator=generator).to(dtype)
        cache.format.store(cache, places, *drawn[: len(shape.rows)])
        for kept, stored in zip(written, cache.format.load(cache, places, torch.float32), strict=True):
            kept.append(stored.double())
    tokens = sum(length for length, _ in rows)
    query = torch.randn(tokens, heads.query, heads.dim, generator=generator).to(dtype)
    native = in_vectors(cache, kv, dtype) if kv in cpu.FORMATS else None
    return Paged(step, cache, native, query, *written)


def nowhere(kv: KvFormat, shape: PageShape, blocks: int, block_size: int) -> LayerCache:
    """Pages in which nothing was written: all is NaN, of whole numbers the scales."""
    cache = kv.allocate(shape, blocks, block_size, lambda sizes, dtype: torch.empty(sizes, dtype=dtype))
    for tensor in cache.tensors():
        tensor.fill_(NAN if tensor.dtype.is_floating_point else 0x7F)  # of fp8 a NaN
    if kv.largest is not None:
        scales = torch.full((2, 1), 0.01) if shape.shared else torch.arange(1.0, 2 * shape.heads + 1) / 100
        kv.set_scales(cache, scales.view(2, -1))
    return cache


def zeros(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for pages: see `Take`."""
    return torch.zeros(sizes, dtype=dtype)


def in_vectors(cache: LayerCache, kv: str, dtype: torch.dtype) -> LayerCache:
    """The same pages as the C++ kernels lay them out, with activations of `dtype`: see src/pages.h."""
    form = cpu.FORMATS[kv](dtype)
    if cache.shape.shared:
        return replace(cache, format=form)
    blocks, kv_heads, block_size, dim = cache.keys.shape
    keys, values = (
        _in_words(pages).view(blocks, kv_heads, block_size, dim)
        for pages in (cache.keys.transpose(2, 3), cache.values)
    )
    return replace(cache, format=form, keys=keys, values=values)


def _in_words(pages: Tensor) -> Tensor:
    """[.., rows, columns], flat: numbers of a column that fill 4 bytes side by side. The last rows follow."""
    pack = 4 // pages.dtype.itemsize
    words = pages.shape[-2] // pack
    whole = pages[..., : words * pack, :].unflatten(-2, (words, pack)).transpose(-1, -2)
    return torch.cat((whole.flatten(-3), pages[..., words * pack :, :].flatten(-2)), -1)


def dense(
    paged: Paged,
    spec: AttentionSpec = FULL_ATTENTION,
    slopes: Tensor | None = None,
    sink_logits: Tensor | None = None,
) -> Tensor:
    """Attention written down plainly, in float64; [tokens, heads * value_size]. `slopes`: linear biases.

    `sink_logits`: of learned sinks.
    """
    outs = []
    for row, tokens in enumerate(paged.rows()):
        query = paged.query[tokens].double()
        group = query.shape[1] // paged.keys[row].shape[1]
        keys = paged.keys[row].repeat_interleave(group, dim=1)
        values = paged.values[row].repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * (spec.scale or query.shape[2] ** -0.5)
        if spec.softcap:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        at = paged.step.positions[tokens, None]
        places = torch.arange(len(keys))
        if slopes is not None:
            scores = scores + slopes[:, None, None] * (places - at)
        seen = places <= at
        if spec.window:
            seen &= (places > at - spec.window) | (places < spec.sinks)
        if spec.chunk:
            seen &= places // spec.chunk == at // spec.chunk
        scores = scores.masked_fill(~seen, -torch.inf)
        if sink_logits is not None:
            sinks = sink_logits.double()[:, None, None].expand(-1, len(query), 1)
            scores = torch.cat((scores, sinks), -1)
        weights = scores.softmax(-1)[..., : len(keys)]
        outs.append(torch.einsum("hqk,khd->qhd", weights, values).flatten(1))
    return torch.cat(outs)
