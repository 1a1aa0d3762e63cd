"""Sampling in C++: what `kernels/reference/sampling.py` defines, in as few passes as each row needs."""

import ctypes
from ctypes import c_char_p, c_int, c_int64, c_void_p

import numpy as np
import torch
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.errors import KernelError
from gpu_worker.kernels.sampling import INTEGERS, NUMBERS, Allowed, Sampled, SamplingState, logprobs_of


class Sampler:
    """Chooses tokens for the rows of a step."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises `KernelError` if the library expects tables with other columns."""
        library.quire_sampling_columns.restype = c_char_p
        columns = library.quire_sampling_columns().decode().split()
        if columns != [*NUMBERS, *INTEGERS]:
            declared = ", ".join((*NUMBERS, *INTEGERS))
            raise KernelError(f"sample.cpp reads the columns {', '.join(columns)}; there are {declared}")
        self._sample = library.quire_sample
        arrays = (c_void_p,) * 6
        masks = (c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p)
        self._sample.argtypes = (c_void_p, c_int, c_int, *arrays, c_int64, *masks, c_void_p, c_void_p)
        self._sample.restype = None

    def __call__(
        self,
        logits: Tensor,
        slots: Int32s,
        positions: Int32s,
        state: SamplingState,
        allowed: Allowed | None = None,
    ) -> Sampled:
        """See `Kernels.sample`; logits float32 and contiguous."""
        rows, vocabulary = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64)
        best = torch.empty(rows)
        biases = None if allowed is None else allowed.biases
        slots, positions = np.ascontiguousarray(slots), np.ascontiguousarray(positions)
        self._sample(
            logits.data_ptr(),
            rows,
            vocabulary,
            slots.ctypes.data,
            positions.ctypes.data,
            state.flags.ctypes.data,
            state.numbers.data_ptr(),
            state.integers.data_ptr(),
            state.tokens.data_ptr(),
            state.tokens.shape[1],
            None if allowed is None else allowed.masks.ctypes.data,
            None if allowed is None else allowed.words.ctypes.data,
            0 if allowed is None else allowed.words.shape[1],
            None if biases is None else biases.starts.ctypes.data,
            None if biases is None else biases.tokens.ctypes.data,
            None if biases is None else biases.values.ctypes.data,
            tokens.data_ptr(),
            best.data_ptr(),
        )
        return Sampled(tokens, best.isfinite(), logprobs_of(logits, slots, tokens, state))
