"""Sampling in C++: what `gpu_worker/sampling/sampler.py` defines, in as few passes as each row needs."""

import ctypes
from ctypes import c_int, c_int64, c_void_p

import numpy as np
import torch
from torch import Tensor

from gpu_worker.sampling.sampler import Sampled, logprobs_of
from gpu_worker.step.batch import Batch
from gpu_worker.step.plan import Int32s


class Sampler:
    """Chooses tokens for the rows of a step."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._sample = library.quire_sample
        arrays = (c_void_p,) * 6
        self._sample.argtypes = (c_void_p, c_int, c_int, *arrays, c_int64, c_void_p, c_void_p)
        self._sample.restype = None

    def __call__(self, logits: Tensor, slots: Int32s, positions: Int32s, batch: Batch) -> Sampled:
        """See `sampler.sample`; logits float32 and contiguous."""
        rows, vocabulary = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64)
        best = torch.empty(rows)
        slots, positions = np.ascontiguousarray(slots), np.ascontiguousarray(positions)
        sampling = batch.sampling
        self._sample(
            logits.data_ptr(),
            rows,
            vocabulary,
            slots.ctypes.data,
            positions.ctypes.data,
            sampling.flags.ctypes.data,
            sampling.number_table.data_ptr(),
            sampling.integer_table.data_ptr(),
            batch.tokens.data_ptr(),
            batch.tokens.shape[1],
            tokens.data_ptr(),
            best.data_ptr(),
        )
        return Sampled(tokens, best.isfinite(), logprobs_of(logits, slots, tokens, batch))
