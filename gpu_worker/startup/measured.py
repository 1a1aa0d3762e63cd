"""Which of the CPU's back ends multiplies bfloat16 faster on this machine: measured once, and kept.

The C++ kernels use vector units. oneDNN also uses matrix units (AMX) where there are any. What is faster
depends on the processor, and on the size of the products. In float32 there is no choice: a row of the C++
kernels has the same bits whatever runs beside it, which a resumed answer needs, and oneDNN's has not.
"""

import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpu_worker.kernels.cpu.linear import PackedLinear
from gpu_worker.kernels.cpu.onednn import OneDnnLinear
from gpu_worker.startup import kept

ROWS = (1, 8, 32, 256)
"""Numbers of rows that are timed: decodes of a few users and of many, and a chunk of a prompt."""
SIZES = (64, 8192)
"""Least and greatest number of columns of the matrix that is timed; it has four times as many rows."""
GAIN = 1.1
"""How many times as fast as the C++ kernels oneDNN must be, on average, to be taken."""
SECONDS = 0.1
"""Time for each measurement, after the first product."""


class Measured(NamedTuple):
    """Milliseconds of a product with each of `ROWS` rows."""

    cpp: tuple[float, ...]
    onednn: tuple[float, ...]

    @property
    def takes_onednn(self) -> bool:
        """Whether oneDNN is faster by `GAIN`, as the geometric mean over `ROWS`."""
        ratios = [ours / theirs for ours, theirs in zip(self.cpp, self.onednn, strict=True)]
        return statistics.geometric_mean(ratios) > GAIN


def products(library: ctypes.CDLL, model: Path, threads: int) -> Measured:
    """Times of products of the model's size: those that this machine has kept, or measured now."""
    size = _hidden_size(model)
    name = f"products-{kept.machine(Path(library._name).name, size, threads)}"
    return kept.once(name, lambda: measure(library, size, threads), Measured._asdict, _read)


def _read(found: Any) -> Measured:
    """Times as they were kept. Raises an error that `kept.once` expects."""
    times = Measured(**{name: tuple(map(float, each)) for name, each in found.items()})
    if not all(len(each) == len(ROWS) and min(each) > 0 for each in times):
        raise ValueError(f"{len(ROWS)} times above 0 of each are needed")
    return times


def measure(library: ctypes.CDLL, size: int, threads: int) -> Measured:
    """Times of products [rows, size] x [size, 4 size] in bfloat16."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        weight = torch.randn(4 * size, size).to(torch.bfloat16)
        rows = [torch.randn(count, size).to(torch.bfloat16) for count in ROWS]
        both = (PackedLinear(library, weight), OneDnnLinear(weight))
        return Measured(*(tuple(_milliseconds(each, x) for x in rows) for each in both))
    finally:
        torch.set_num_threads(before)


def _milliseconds(product: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The least time of a product within `SECONDS`: what else the machine does only adds to it."""
    product(x)
    least, end = float("inf"), time.perf_counter() + SECONDS
    while True:
        begun = time.perf_counter()
        product(x)
        ended = time.perf_counter()
        least = min(least, ended - begun)
        if ended >= end:
            return round(1000 * least, 4)


def _hidden_size(model: Path) -> int:
    """The model's hidden size within `SIZES`; what is wrong with a configuration its reader says later."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        size = int((config.get("text_config") or config)["hidden_size"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        size = SIZES[1] // 4
    return min(max(size, SIZES[0]), SIZES[1])
