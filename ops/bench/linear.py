"""Products of the CPU kernels against oneDNN with weights packed beforehand, call by call.

bf16: pairs of numbers by one instruction, where there is one; bf16_parts: by two.

`python -m ops.bench.linear` writes `results/linear.json`. Every call takes another copy of the weights,
more than the caches hold, so that they come from memory as they do in a model. The kinds take turns; so
does a plain sum over as much memory, because what memory gives changes on machines that others share.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.int4 import Int4Linear
from gpu_worker.kernels.cpu.linear import PackedLinear
from gpu_worker.kernels.cpu.onednn import OneDnnLinear
from gpu_worker.kernels.cpu.quantized import QuantizedLinear
from gpu_worker.machine.onednn import has_onednn_bfloat16
from ops.bench import record
from ops.bench.command import RESULTS

MODELS = {
    "135M": {
        "qkv": (960, 576),
        "out": (576, 576),
        "gate_up": (3072, 576),
        "down": (576, 1536),
        "head": (49152, 576),
    },
    "1.1B": {
        "qkv": (2560, 2048),
        "out": (2048, 2048),
        "gate_up": (11264, 2048),
        "down": (2048, 5632),
        "head": (32000, 2048),
    },
}
"""(out, in) of the products of two models: of 135 million parameters and of 1.1 billion."""

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512)
MEMORY = 200 << 20
"""Bytes of weights that are gone through before one comes again."""
SECONDS = 0.1
"""What is spent on one shape and number of rows, besides packing."""
REST = 0.03
"""Seconds before a turn: PyTorch's threads go on looking for work for a while, and would share the cores
with the next kind's."""

Product = Callable[[Tensor], Tensor]


def measure(kinds: dict[str, list[Product]], x: Tensor, size: dict[str, int]) -> dict[str, Any]:
    """Microseconds of a call of each kind; GB/s of weights (`size`: bytes of one) and GFLOP/s."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    next_copy = dict.fromkeys(kinds, 0)
    begun = time.perf_counter()
    while time.perf_counter() - begun < SECONDS or len(seconds["bf16"]) < 3:
        for kind, copies in kinds.items():
            turn = min(len(copies), 40)
            first = next_copy[kind]
            chosen = [copies[(first + number) % len(copies)] for number in range(turn)]
            next_copy[kind] = first + turn
            time.sleep(REST)
            for product in chosen[-3:]:
                product(x)
            start = time.perf_counter()
            for product in chosen:
                product(x)
            seconds[kind].append((time.perf_counter() - start) / turn)
    found = {}
    for kind, times in seconds.items():
        once = median(times)
        found[kind] = {"us": round(once * 1e6, 1), "gb_s": round(size[kind] / once / 1e9, 1)}
        if kind != "plain_read":
            out = size["bf16"] // 2 // x.shape[1]
            found[kind]["gflop_s"] = round(2e-9 * out * x.shape[1] * len(x) / once, 1)
    return found


def in_parts(kernels: ctypes.CDLL, products: Sequence[PackedLinear]) -> list[Product]:
    """The same products, with pairs of bfloat16 multiplied in two parts."""

    def multiplied(product: PackedLinear, x: Tensor) -> Tensor:
        kernels.quire_bfloat16_pairs(0)
        try:
            return product(x)
        finally:
            kernels.quire_bfloat16_pairs(1)

    return [partial(multiplied, each) for each in products]


def on_own_cores(start: Callable[[], object], cores: list[int]) -> None:
    """Give each thread that `start` starts a core: a woken one may else begin on the caller's."""
    tasks = Path("/proc/self/task")
    known = set(tasks.iterdir())
    start()
    for thread, core in zip(sorted(set(tasks.iterdir()) - known), cores[1:], strict=False):
        os.sched_setaffinity(int(thread.name), {core})


def products(
    instruction_set: str, models: Mapping[str, Mapping[str, tuple[int, int]]], counts: Sequence[int]
) -> dict[str, Any]:
    """Times and rates by model, product and rows. oneDNN takes part if it multiplies bfloat16 here."""
    torch.manual_seed(1)
    cores = sorted(os.sched_getaffinity(0))
    threads = len(cores)
    os.sched_setaffinity(0, {cores[0]})
    torch.set_num_threads(threads)
    on_own_cores(lambda: torch.ones(MEMORY // 4).sum(), cores)  # PyTorch's, with the first work for all
    on_own_cores(lambda: library.load(instruction_set, threads), cores)
    kernels = library.load(instruction_set, threads)
    memory = torch.ones(MEMORY // 4)
    results: dict[str, Any] = {"instruction_set": instruction_set, "threads": threads}
    for model, shapes in models.items():
        for name, (out, width) in shapes.items():
            weight = torch.randn(out, width).bfloat16()
            copies = max(2, MEMORY // weight.nbytes + 1)
            bf16 = [PackedLinear(kernels, weight, None) for _ in range(copies)]
            int8 = [QuantizedLinear(kernels, weight, None) for _ in range(2 * copies)]
            int4 = [Int4Linear(kernels, weight, None) for _ in range(4 * copies)]
            kinds: dict[str, list[Product]] = {"bf16": list(bf16), "int8": list(int8), "int4": list(int4)}
            size = {"bf16": weight.nbytes, "int8": int8[0].nbytes, "int4": int4[0].nbytes}
            if has_onednn_bfloat16():
                kinds["onednn_bf16"] = [OneDnnLinear(weight, None) for _ in range(copies)]
                size["onednn_bf16"] = weight.nbytes
            if kernels.quire_bfloat16_pairs(1) == 1:
                kinds["bf16_parts"], size["bf16_parts"] = in_parts(kernels, bf16), weight.nbytes
            kinds["plain_read"] = [lambda _: memory.sum()]
            size["plain_read"] = memory.nbytes
            for rows in counts:
                found = measure(kinds, torch.randn(rows, width).bfloat16(), size)
                results.setdefault(model, {}).setdefault(f"{name} {out}x{width}", {})[str(rows)] = found
                line = "  ".join(f"{kind} {its['us']} us {its['gb_s']} GB/s" for kind, its in found.items())
                print(f"{model} {name} {out}x{width}, {rows} rows: {line}", file=sys.stderr, flush=True)
    return results


def main() -> None:
    results = products(build.supported()[0], MODELS, ROWS)
    record.write(RESULTS / "linear.json", "linear", 1, results)


if __name__ == "__main__":
    main()
