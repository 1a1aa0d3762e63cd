"""Paged attention in C++: see src/attention.cpp."""

import ctypes
import math
from ctypes import c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from gpu_worker.kernels.attention import FULL_ATTENTION, AttentionSpec, LayerCache, Rotary, StepMetadata
from gpu_worker.kernels.cpu.kv.format import page_type
from gpu_worker.kernels.cpu.library import DTYPES, address
from gpu_worker.kernels.cpu.recurrence import MOST_TAPS, Recurrence
from gpu_worker.kernels.cpu.tape import Kernel
from gpu_worker.kernels.recurrence import DeltaRule, Filters, StateCache, StateSpace
from gpu_worker.kernels.reference.attention import ReferenceStep
from gpu_worker.kernels.reference.latent import write_latent
from gpu_worker.kernels.reference.recurrence import RecurrentStep
from gpu_worker.kernels.reference.selection import SelectingStep

WHOLE = 32
"""Numbers of a row of shared pages, or a multiple of it: other rows PyTorch reads."""


class Attention:
    """The functions of the library, with what they take."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.attend = Kernel(
            library,
            "quire_attend",
            *(c_int, c_int, c_int64, c_void_p, c_void_p, c_void_p, c_int64),
            *(c_int64, c_int64, c_int64, c_int64, c_int64, c_float, c_float, c_int64, c_int64, c_int64),
            *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        )
        self.rotate_and_write = Kernel(
            library,
            "quire_rotate_and_write",
            *(c_int, c_int, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p),
            *(c_int64, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        )

        self.recurrence = Recurrence(library)

    def begin(self, step: StepMetadata) -> "CpuStep":
        """See `Kernels.begin`."""
        return CpuStep(self, step)


class CpuStep(SelectingStep, RecurrentStep):
    """See `StepAttention`. Addresses are looked up once for all layers."""

    def __init__(self, functions: Attention, step: StepMetadata) -> None:
        # The step is held as long as its tensors' addresses are used.
        super().__init__(step, functions.begin)
        self._functions = functions
        self._tables = step.block_tables.contiguous()
        self._drafted = torch.tensor(step.drafted) if any(step.drafted) else None
        self._rows = (
            len(step.query_lengths),
            step.query_starts.data_ptr(),
            step.contexts.data_ptr(),
            self._tables.data_ptr(),
            self._tables.shape[1],
        )
        self._tokens = (
            len(step.positions),
            step.lines.data_ptr(),
            step.kv_entries.data_ptr(),
        )

    def rotate_and_write(self, qkv: Tensor, rotary: Rotary, cache: LayerCache) -> Tensor:
        kv_heads, head_dim = cache.shape.heads, cache.shape.key_size
        heads = qkv.shape[1] // head_dim - 2 * kv_heads
        query = torch.empty((qkv.shape[0], heads, head_dim), dtype=qkv.dtype)
        self._functions.rotate_and_write(
            DTYPES[qkv.dtype],
            page_type(cache),
            qkv.data_ptr(),
            *self._tokens,
            rotary.cos.data_ptr(),
            rotary.sin.data_ptr(),
            cache.block_size,
            heads,
            kv_heads,
            head_dim,
            query.data_ptr(),
            cache.keys.data_ptr(),
            cache.values.data_ptr(),
            address(cache.key_scales),
            address(cache.value_scales),
        )
        return query

    def write_latent(self, query: Tensor, latent: Tensor, rotary: Rotary, cache: LayerCache) -> None:
        write_latent(query, latent, rotary, cache, self._step)

    def attend(
        self,
        query: Tensor,
        cache: LayerCache,
        spec: AttentionSpec = FULL_ATTENTION,
        slopes: Tensor | None = None,
        sink_logits: Tensor | None = None,
    ) -> Tensor:
        head_dim, shared = cache.shape.key_size, cache.shape.shared
        if shared and head_dim % WHOLE:
            return ReferenceStep(self._step).attend(query, cache, spec, slopes, sink_logits)
        heads = query.shape[1]
        value_dim = cache.shape.value_size
        out = torch.empty((query.shape[0], heads * value_dim), dtype=query.dtype)
        self._functions.attend(
            DTYPES[query.dtype],
            page_type(cache),
            *self._rows,
            cache.block_size,
            heads,
            cache.shape.heads,
            head_dim,
            value_dim,
            spec.scale or 1.0 / math.sqrt(head_dim),
            spec.softcap,
            spec.window,
            spec.sinks,
            spec.chunk,
            address(slopes),
            address(sink_logits),
            query.data_ptr(),
            cache.keys.data_ptr(),
            None if shared else cache.values.data_ptr(),
            address(cache.key_scales),
            address(cache.value_scales),
            out.data_ptr(),
        )
        return out

    def convolve(self, inputs: Tensor, filters: Filters, cache: StateCache) -> Tensor:
        if len(filters.weight) > MOST_TAPS:
            return super().convolve(inputs, filters, cache)
        recurrence = self._functions.recurrence
        rows = recurrence.rows(self._step, self._tables, self._drafted, cache.block_size)
        return recurrence.convolved(rows, inputs, filters, cache)

    def delta_rule(self, qkv: Tensor, gates: Tensor, rule: DeltaRule, cache: StateCache) -> Tensor:
        recurrence = self._functions.recurrence
        rows = recurrence.rows(self._step, self._tables, self._drafted, cache.block_size)
        return recurrence.changed(rows, qkv, gates, rule, cache)

    def state_space(self, inputs: Tensor, steps: Tensor, space: StateSpace, cache: StateCache) -> Tensor:
        recurrence = self._functions.recurrence
        rows = recurrence.rows(self._step, self._tables, self._drafted, cache.block_size)
        return recurrence.scanned(rows, inputs, steps, space, cache)
