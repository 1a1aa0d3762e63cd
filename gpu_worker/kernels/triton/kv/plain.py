"""Pages of the activations' own type in Triton."""

import torch
import triton
import triton.language as tl

from gpu_worker.kernels.reference.kv.plain import Plain
from gpu_worker.kernels.triton.kv.format import Reading, TritonFormat


@triton.jit
def store_plain(numbers, pages, scales, row, head, dims, SIZE: tl.constexpr):
    tl.store(pages + row * SIZE + dims, numbers.to(pages.dtype.element_ty), mask=dims < SIZE)


@triton.jit
def widen_plain(numbers, FACTOR: tl.constexpr):
    return (numbers.to(FACTOR),)


class TritonPlain(TritonFormat, Plain):
    """See `KvFormat` and `kv/format.py`."""

    store_row = store_plain

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        """`dtype`: of the activations."""
        super().__init__(dtype)
        self._reading = Reading(widen_plain)

    def reading(self, factor: tl.dtype) -> Reading:
        return self._reading
