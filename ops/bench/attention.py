"""How fast the CPU back end attends, against plain PyTorch: `python -m ops.bench.attention`.

Both take turns, and the best of a few turns counts: what else runs on the machine only ever slows down.
Decodes are counted in bytes of keys and values read a second, chunks of prefills in operations a second:
two products of 2 * head_dim operations for each query head and each position that a token sees. Pages of int8
take part too; their speed-up is the time with pages of bfloat16 over theirs.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.attention import LayerCache, StepMetadata
from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import CpuKernels
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.kv_sizes import AUTO, PageShape
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from ops.bench import record
from ops.bench.command import parser
from ops.bench.rig.pages import make_pages

CPU = torch.device("cpu")
SEED = 0
BLOCK_SIZE = 16
KV_MEMORY = 1 << 30
"""Bytes of keys and values that a case may take, so that it fits anywhere."""
MANY_BYTES = 256 << 20
"""Of pages that turns go through: more than a processor's cache, as a model's layers are."""

SHAPES = {
    "9 heads, 3 kv, 64": (9, 3, 64),
    "32 heads, 4 kv, 64": (32, 4, 64),
    "32 heads, 8 kv, 128": (32, 8, 128),
}
DECODES = [(batch, context) for batch in (1, 8, 32) for context in (128, 1024, 8192)]
CHUNKS = [(tokens, earlier) for earlier in (0, 1024) for tokens in (32, 128, 512)]


@dataclass(frozen=True)
class Case:
    """Rows of one kind over pages of several layers."""

    step: StepMetadata
    layers: list[LayerCache]
    small_layers: list[LayerCache]
    """As many in int8."""
    query: Tensor
    bytes: int
    """Of the keys and values that one layer reads."""
    small_bytes: int
    """The same in int8, with their scales."""
    operations: int
    """Of one layer."""


def make_case(kernels: Kernels, rows: int, tokens: int, context: int, shape: tuple[int, int, int]) -> Case:
    """`rows` sequences of `context` positions, the last `tokens` of which are in the step."""
    heads, kv_heads, dim = shape
    blocks = -(-context // BLOCK_SIZE)
    tables = torch.randperm(rows * blocks).int().view(rows, blocks)
    positions = torch.arange(context - tokens, context).repeat(rows)
    step = StepMetadata(
        decodes=rows if tokens == 1 else 0,
        query_lengths=(tokens,) * rows,
        context_lengths=(context,) * rows,
        query_starts=torch.arange(rows + 1, dtype=torch.int32) * tokens,
        contexts=torch.full((rows,), context, dtype=torch.int32),
        block_tables=tables,
        positions=positions,
        kv_entries=torch.zeros(rows * tokens, dtype=torch.int64),
    )
    pages = PageShape(kv_heads, dim, dim)
    plain, small = (kernels.kv_format(name, torch.bfloat16) for name in (AUTO, "int8"))
    read = rows * context * plain.token_bytes(pages)
    count = max(1, min(MANY_BYTES // read, 30))
    layers, small_layers = (
        [make_pages(kv, pages, rows * blocks, BLOCK_SIZE, CPU) for _ in range(count)] for kv in (plain, small)
    )
    query = torch.randn(rows * tokens, heads, dim).bfloat16()
    seen = sum(range(context - tokens + 1, context + 1))
    return Case(
        step,
        layers,
        small_layers,
        query,
        read,
        rows * context * small.token_bytes(pages),
        rows * seen * heads * dim * 4,
    )


def seconds(case: Case, ways: list[tuple[Kernels, list[LayerCache]]], turns: int) -> list[float]:
    """Of one layer with each back end and its pages."""

    def turn(kernel: Kernels, layers: list[LayerCache]) -> float:
        begin = time.perf_counter()
        step = kernel.begin(case.step)
        for cache in layers:
            step.attend(case.query, cache)
        return (time.perf_counter() - begin) / len(layers)

    measured = [[turn(*way) for way in ways] for _ in range(turns + 1)]
    return [min(column) for column in zip(*measured[1:], strict=True)]  # the first turn warms up


def measure(
    cases: list[tuple[int, int, int]],
    rate: Callable[[Case], int],
    unit: str,
    turns: int,
    instruction_set: str,
) -> list[dict[str, Any]]:
    """Each case (rows, tokens, context) in each shape that fits, as `rate` counts a second."""
    native = CpuKernels(library.load(instruction_set, torch.get_num_threads()))
    found = []
    for name, shape in SHAPES.items():
        for rows, tokens, context in cases:
            if 2 * rows * context * shape[1] * shape[2] * torch.bfloat16.itemsize > KV_MEMORY:
                continue
            case = make_case(native, rows, tokens, context, shape)
            ways: list[tuple[Kernels, list[LayerCache]]] = [
                (native, case.layers),
                (native, case.small_layers),
                (ReferenceKernels(), case.layers),
            ]
            own, small, reference = seconds(case, ways, turns)
            found.append(
                {
                    "shape": name,
                    "rows": rows,
                    "tokens": tokens,
                    "context": context,
                    unit: round(rate(case) / own / 1e9, 1),
                    f"{unit} of PyTorch": round(rate(case) / reference / 1e9, 1),
                    "int8 GB/s": round(case.small_bytes / small / 1e9, 1),
                    "int8 speed-up": round(own / small, 2),
                }
            )
            print(found[-1], file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure and write the results."""
    command = parser(__doc__, "attention.json")
    command.add_argument("--turns", type=int, default=3)
    options = command.parse_args()
    record.write(
        options.out, "attention", SEED, attention(build.supported()[0], DECODES, CHUNKS, options.turns)
    )


def attention(
    instruction_set: str,
    decodes: Sequence[tuple[int, int]],
    chunks: Sequence[tuple[int, int]],
    turns: int,
) -> dict[str, Any]:
    """Decodes (rows, context) and chunks (tokens, tokens before them) with one instruction set."""
    torch.manual_seed(SEED)
    alone = [(batch, 1, context) for batch, context in decodes]
    after = [(1, tokens, earlier + tokens) for tokens, earlier in chunks]
    return {
        "instruction set": instruction_set,
        "threads": torch.get_num_threads(),
        "decodes": measure(alone, lambda case: case.bytes, "GB/s", turns, instruction_set),
        "chunks": measure(after, lambda case: case.operations, "GFLOP/s", turns, instruction_set),
    }


if __name__ == "__main__":
    main()
