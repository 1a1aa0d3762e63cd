"""How fast this machine reads memory and multiplies: what the floors of steps follow from."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from gpu_worker.machine.onednn import has_onednn_bfloat16

READ_BYTES = 400 << 20
"""Bytes that are read to measure the bandwidth."""
MATRIX = 2048
"""Rows and columns of the matrices that are multiplied to measure the matrix rate."""
TRIES = 5
"""Times that each measurement is repeated; the median counts."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of the machine, with as many threads as the model has."""

    read: float
    """Bytes read from memory per second."""
    matrix: float
    """Floating-point operations per second in matrix products of the model's type."""

    def describe(self, arithmetic: str) -> dict[str, str]:
        """Both rates for a person, by name. `arithmetic`: what computes the products."""
        tera = self.matrix >= 1e12
        products = f"{self.matrix / 1e12:.1f} TFLOP/s" if tera else f"{self.matrix / 1e9:.0f} GFLOP/s"
        return {"products": f"{products} ({arithmetic})", "memory": f"{self.read / 1e9:.3g} GB/s"}


def measured(
    dtype: torch.dtype, threads: int, read_bytes: int = READ_BYTES, seconds: float = math.inf
) -> Rates:
    """Measure this machine's rates. `seconds`: time for each of the three to five measurements, about.

    PyTorch keeps threads for the calling thread as long as that lives.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        numbers = torch.zeros(read_bytes // 4)
        left = torch.randn(MATRIX, MATRIX).to(dtype)
        right = torch.randn(MATRIX, MATRIX).to(dtype)
        matrices = [(left, right)]
        if dtype == torch.bfloat16:  # what has no products of bfloat16 can widen it
            matrices.append((left.float(), right.float()))
        products: list[Callable[[], object]] = []
        for one, other in matrices:
            products.append(partial(torch.nn.functional.linear, one, other))
            if other.dtype != torch.bfloat16 or has_onednn_bfloat16():  # oneDNN's own layout may be faster
                packed = torch.ops.mkldnn._reorder_linear_weight(other, MATRIX)
                products.append(
                    partial(torch.ops.mkldnn._linear_pointwise, one, packed, None, "none", [], "")
                )
        read = read_bytes / _seconds(numbers.sum, seconds)
        return Rates(read, 2 * MATRIX**3 / min(_seconds(product, seconds) for product in products))
    finally:
        torch.set_num_threads(before)


def _seconds(run: Callable[[], object], most: float) -> float:
    """Median seconds of `TRIES` runs, or of fewer if they take longer than `most` seconds.

    The least would be too good: other processes slow down steps, too.
    """
    begun = time.perf_counter()
    run()
    tries: list[float] = []
    while len(tries) < TRIES and (not tries or time.perf_counter() - begun < most):
        started = time.perf_counter()
        run()
        tries.append(time.perf_counter() - started)
    return median(tries)
