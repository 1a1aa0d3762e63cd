"""Paged attention in Triton: `tile.py` and `latent_tile.py` have the kernels, `launch.py` cuts a step up."""

from dataclasses import replace

import torch
import triton
from torch import Tensor

from gpu_worker.kernels.attention import FULL_ATTENTION, AttentionSpec, LayerCache, Rotary, StepMetadata
from gpu_worker.kernels.reference.attention import ReferenceStep
from gpu_worker.kernels.reference.selection import SelectingStep
from gpu_worker.kernels.triton import gpu
from gpu_worker.kernels.triton.attention import latent
from gpu_worker.kernels.triton.attention.combine import combined
from gpu_worker.kernels.triton.attention.launch import LEAST, Launch, Tiling, launches
from gpu_worker.kernels.triton.attention.rotate import rotate_and_write
from gpu_worker.kernels.triton.attention.tile import attend_tile
from gpu_worker.kernels.triton.formats.factors import factor
from gpu_worker.kernels.triton.kv.format import format_of, pointers
from gpu_worker.kernels.triton.recurrence import ChunkedStep

TILE_BYTES = 16 << 10
"""Of the keys, or values, that a program has before it at a time."""

SCALES = 1 << 10
"""Bytes of a tile's scales, at most."""


def tiling(size: int, dim: int, query_bytes: int, page_bytes: int, shared_memory: int) -> Tiling:
    """For tiles of `size` queries over heads of `dim`. `query_bytes`, `page_bytes`: of a number.
    `shared_memory`: bytes that a program may have.

    Short rows have more keys in a tile, over which the tile's own work is spread. They have fewer where the
    widened keys would not fit into the registers beside sums and queries. A tile has half as many keys where
    queries, keys, values and weights of all would not fit into the shared memory. Where these do not either,
    there is one stage: keys and values are in the same place, one after the other.
    """
    found = _usual(size, dim, query_bytes, page_bytes)
    fewer = replace(found, keys=max(LEAST, found.keys // 2))
    for chosen in (found, fewer):
        taken = query_bytes * size * (dim + chosen.keys) + 2 * page_bytes * dim * chosen.keys
        if taken + SCALES <= shared_memory:
            return chosen
    return replace(fewer, stages=1)


def _usual(size: int, dim: int, query_bytes: int, page_bytes: int) -> Tiling:
    """Where there is room."""
    if query_bytes == 4:
        return Tiling(16, 8, 2)
    if page_bytes == 1 and dim > 128 and size > LEAST:
        return Tiling(32, 8, 3)
    large = size * dim >= 128 * 128
    most = 128 if page_bytes < query_bytes and size <= LEAST else 64
    if large and page_bytes == query_bytes:  # room for two programs on a processor
        most = 32
    return Tiling(min(most, TILE_BYTES // (dim * page_bytes)), 8 if large else 4, 2)


def chunk_rows(query: Tensor) -> int:
    """Rows of a chunk's tile: what its sums leave of the registers."""
    if query.dtype == torch.float32:
        return 32
    dim = query.shape[2]
    return 128 if dim <= 128 else 64 if dim <= 256 else 32


class TritonStep(SelectingStep, ChunkedStep):
    """See `StepAttention`."""

    def __init__(self, step: StepMetadata, processors: int) -> None:
        """`processors`: of the GPU, which splits are to fill."""
        super().__init__(step, lambda selected: TritonStep(selected, processors))
        self._processors = processors
        self._launches: dict[tuple[int, int], list[Launch]] = {}

    def rotate_and_write(self, qkv: Tensor, rotary: Rotary, cache: LayerCache) -> Tensor:
        return rotate_and_write(qkv, rotary, cache, self._step)

    def write_latent(self, query: Tensor, rows: Tensor, rotary: Rotary, cache: LayerCache) -> None:
        latent.write(query, rows, rotary, cache, self._step)

    def attend(
        self,
        query: Tensor,
        cache: LayerCache,
        spec: AttentionSpec = FULL_ATTENTION,
        slopes: Tensor | None = None,
        sink_logits: Tensor | None = None,
    ) -> Tensor:
        if cache.shape.shared:
            return self._attend_latent(query, cache, spec)
        out = torch.empty_like(query)
        for launch in self._cut(query.shape[1] // cache.shape.heads, chunk_rows(query)):
            self._attend(launch, query, cache, spec, slopes, sink_logits, out)
        return out.flatten(1)

    def _attend_latent(self, query: Tensor, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        if spec.window or spec.chunk or spec.softcap:  # which no model with such pages has
            return ReferenceStep(self._step).attend(query, cache, spec)
        out = query.new_empty((*query.shape[:2], cache.shape.value_size))
        most = latent.tile_rows(query)
        for launch in self._cut(latent.heads_of_a_tile(query), most):
            latent.attend(launch, query, cache, spec, self._step, self._processors, factor(query), out)
        return out.flatten(1)

    def _cut(self, group: int, large: int) -> list[Launch]:
        """The step in launches, the same for all layers."""
        if (group, large) not in self._launches:
            self._launches[group, large] = launches(self._step, group, large)
        return self._launches[group, large]

    def _attend(
        self,
        launch: Launch,
        query: Tensor,
        cache: LayerCache,
        spec: AttentionSpec,
        slopes: Tensor | None,
        sink_logits: Tensor | None,
        out: Tensor,
    ) -> None:
        """Fill in the rows of `out` that are the launch's."""
        step, (_, heads, dim) = self._step, query.shape
        kv_heads, kv = cache.shape.heads, format_of(cache)
        reading = kv.reading(factor(query))
        in_window = spec.sinks + spec.window if spec.window else spec.chunk or launch.longest
        splits = launch.splits(kv_heads, in_window, self._processors)
        rows, padded = launch.step_tokens * heads, triton.next_power_of_2(max(16 * reading.each, dim))
        partials = logsums = None
        if splits > 1:
            partials = query.new_empty((splits, rows, dim), dtype=torch.float32)
            logsums = query.new_empty((splits, rows), dtype=torch.float32)
        room = gpu.shared_memory(query.device)
        tiles = tiling(launch.size, padded, query.itemsize, query.itemsize // reading.each, room)
        attend_tile[(launch.count, kv_heads, splits)](
            query,
            *pointers(cache, reading.word),
            slopes,
            sink_logits,
            step.block_tables,
            step.query_starts,
            step.contexts,
            launch.tiles,
            out,
            partials,
            logsums,
            step.block_tables.stride(0),
            rows,
            launch.tile_tokens,
            spec.scale or dim**-0.5,
            KV_HEADS=kv_heads,
            GROUP=heads // kv_heads,
            DIM=dim,
            DIM_PADDED=padded,
            BLOCK_SIZE=cache.block_size,
            M=launch.size,
            N=tiles.keys,
            WINDOW=spec.window,
            SINKS=spec.sinks,
            CHUNK=spec.chunk,
            SOFTCAP=spec.softcap,
            ROW_SCALES=kv.row_scales,
            HEAD_SCALES=kv.head_scales,
            EACH=reading.each,
            WIDEN=reading.widen,
            FACTOR=factor(query),
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
        if partials is not None and logsums is not None:
            combined(partials, logsums, out)
