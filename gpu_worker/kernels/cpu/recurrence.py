"""Recurrent layers in C++: see src/recurrence.cpp."""

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from gpu_worker.kernels.attention import StepMetadata
from gpu_worker.kernels.cpu.library import DTYPES, address
from gpu_worker.kernels.cpu.tape import Kernel
from gpu_worker.kernels.recurrence import DeltaRule, Filters, StateCache, StateSpace

MOST_TAPS = 8
"""Tokens that a filter may see, as in `src/recurrence.cpp`: others PyTorch computes."""

StepRows = tuple[int | None, ...]


class Recurrence:
    """The functions of the library, with what they take."""

    def __init__(self, library: ctypes.CDLL) -> None:
        rows = (c_int, c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_void_p)
        self.convolve = Kernel(
            library,
            "quire_convolve",
            *(*rows, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int, c_void_p, c_void_p),
        )
        self.delta_rule = Kernel(
            library,
            "quire_delta_rule",
            *(*rows, c_int64, c_int64, c_int64, c_int64, c_int, c_int, c_float, c_float),
            *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        )
        self.state_space = Kernel(
            library,
            "quire_state_space",
            *(*rows, c_int64, c_int64, c_int64, c_int64),
            *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_float, c_float, c_void_p, c_void_p),
        )

    def rows(self, step: StepMetadata, tables: Tensor, drafted: Tensor | None, block_size: int) -> StepRows:
        """The rows of a step, as the functions take them. `tables`: its contiguous block tables. `drafted`:
        bool [rows], which rows have drafts; None: none has."""
        starts, contexts = step.query_starts.data_ptr(), step.contexts.data_ptr()
        where = len(tables), starts, contexts, tables.data_ptr(), tables.shape[1]
        return *where, block_size, address(drafted)

    def convolved(self, rows: StepRows, inputs: Tensor, filters: Filters, cache: StateCache) -> Tensor:
        """See `StepRecurrence.convolve`."""
        if inputs.stride(1) != 1:
            raise ValueError(f"the channels of a token are {inputs.stride(1)} apart")
        out = torch.empty(inputs.shape, dtype=inputs.dtype)
        taps, channels = filters.weight.shape
        self.convolve(
            DTYPES[inputs.dtype],
            *rows,
            inputs.data_ptr(),
            inputs.stride(0),
            channels,
            taps,
            filters.weight.data_ptr(),
            address(filters.bias),
            filters.silu,
            cache.inputs.data_ptr(),
            out.data_ptr(),
        )
        return out

    def changed(
        self, rows: StepRows, qkv: Tensor, gates: Tensor, rule: DeltaRule, cache: StateCache
    ) -> Tensor:
        """See `StepRecurrence.delta_rule`."""
        shape, decay = cache.shape, rule.decay
        values = shape.heads * shape.value_size
        out = torch.empty((len(qkv), values), dtype=qkv.dtype)
        self.delta_rule(
            DTYPES[qkv.dtype],
            *rows,
            (qkv.shape[1] - values) // (2 * shape.key_size),
            shape.heads,
            shape.key_size,
            shape.value_size,
            rule.tiled,
            len(decay.bias) > shape.heads,
            rule.update_scale,
            decay.bound,
            qkv.data_ptr(),
            gates.data_ptr(),
            decay.rate.data_ptr(),
            decay.bias.data_ptr(),
            address(cache.matrices),
            out.data_ptr(),
        )
        return out

    def scanned(
        self, rows: StepRows, inputs: Tensor, steps: Tensor, space: StateSpace, cache: StateCache
    ) -> Tensor:
        """See `StepRecurrence.state_space`."""
        shape = cache.shape
        values = shape.heads * shape.value_size
        out = torch.empty((len(inputs), values), dtype=inputs.dtype)
        self.state_space(
            DTYPES[inputs.dtype],
            *rows,
            (inputs.shape[1] - values) // (2 * shape.key_size),
            shape.heads,
            shape.key_size,
            shape.value_size,
            inputs.data_ptr(),
            steps.data_ptr(),
            space.decay.rate.data_ptr(),
            space.decay.bias.data_ptr(),
            space.skip.data_ptr(),
            space.shortest,
            space.longest,
            address(cache.matrices),
            out.data_ptr(),
        )
        return out
