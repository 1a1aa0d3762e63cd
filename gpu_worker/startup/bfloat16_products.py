"""Which of two ways to multiply bfloat16 in C++ is the faster one on this machine: measured once, and kept.

The instruction that multiplies pairs of bfloat16 is slower on some processors than two of float32. What is
faster depends on the processor, and on the size of the products. Where the kernels use matrix units (AMX)
nothing is measured: they are the fastest. oneDNN has no part in this: a row of the C++ kernels has the same
bits whatever runs beside it, which an answer needs that goes on after a crash, and oneDNN's has not.
"""

import ctypes
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.cpu.linear import PackedLinear
from gpu_worker.startup import kept

CPP, IN_PARTS = WAYS = ("C++", "C++ in two parts")
"""How pairs of bfloat16 may be multiplied: by one instruction, or by two."""
ROWS = (1, 8, 32, 256)
"""Numbers of rows that are timed: decodes of a few users and of many, and a chunk of a prompt."""
SIZES = (64, 8192)
"""Least and greatest number of columns of the matrix that is timed; it has four times as many rows."""
GAIN = 1.1
"""How many times as fast as the first way the other must be, on average, to be taken."""
ROUNDS = 5
"""Times that each is measured, in turns: what else the machine does for some time slows all of them down."""
SECONDS = 0.02
"""Time for each measurement, after the first product."""

Times = dict[str, tuple[float, ...]]
"""Milliseconds of a product with each of `ROWS` rows, by the way."""


def fastest(times: Times) -> int:
    """The place of the fastest, by the geometric mean over `ROWS`: 0 unless another one gains `GAIN`."""
    first, *others = (statistics.geometric_mean(each) for each in times.values())
    gains = [GAIN, *(first / other for other in others)]
    return gains.index(max(gains))


def known_times(library: ctypes.CDLL, model: Path, threads: int) -> Times:
    """Times of products of the model's size: those that this machine has kept, or measured now."""

    def read(found: Any) -> Times:
        """Times as they were kept. Raises an error that `kept.once` expects."""
        times = {name: tuple(map(float, found[name])) for name in WAYS}
        if not all(len(each) == len(ROWS) and min(each) > 0 for each in times.values()):
            raise ValueError(f"{len(ROWS)} times above 0 of each are needed")
        return times

    size = _hidden_size(model)
    name = f"products-{kept.machine(Path(library._name).name, *WAYS, size, threads)}"
    return kept.once(name, lambda: measure(library, size, threads), dict, read)


def measure(library: ctypes.CDLL, size: int, threads: int) -> Times:
    """Times of products [rows, size] x [size, 4 size] in bfloat16. C++ multiplies pairs afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        weight = torch.randn(4 * size, size).to(torch.bfloat16)
        rows = [torch.randn(count, size).to(torch.bfloat16) for count in ROWS]
        packed = PackedLinear(library, weight)
        times: dict[str, list[float]] = {way: [math.inf] * len(ROWS) for way in WAYS}
        for _ in range(ROUNDS):
            for way in WAYS:
                library.quire_bfloat16_pairs(way != IN_PARTS)
                found = (_milliseconds(packed, x) for x in rows)
                times[way] = list(map(min, times[way], found))
        return {way: tuple(each) for way, each in times.items()}
    finally:
        library.quire_bfloat16_pairs(1)
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
