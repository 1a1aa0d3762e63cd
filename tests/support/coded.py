"""Weights with the codes of a checkpoint."""

import torch

from gpu_worker.kernels.codes import CodedWeight, Codes

RANGES = {"int8": (-128, 128), "six": (-32, 32), "five": (0, 32)}
"""Values of int8, from the lowest to before the highest."""
KINDS = (*RANGES, "whole", "half", "wide", "fp8", "table")
ROUNDED = tuple(kind for kind in KINDS if kind not in ("fp8", "table"))
"""Kinds with which activations are rounded."""
TABLES = {
    "whole": torch.arange(-8.0, 8.0),
    "half": torch.arange(-7.5, 8.5, 1.0),
    "wide": torch.arange(-120.0, 120.0, 15.0),
    "table": torch.randn(16, generator=torch.Generator().manual_seed(0)),
}
"""Values of codes of 4 bits: small whole numbers, halves, others of int8, and any."""


def coded(
    kind: str,
    out: int,
    inputs: int,
    dtype: torch.dtype = torch.float32,
    more: bool = False,
    size: int = 16,
) -> CodedWeight:
    """Random codes of a kind in groups of `size` inputs, those of 5 bits of 32 at least, of 6 bits of 16.

    `more`: with shifts, factors of two groups, scales of float32, and another order of inputs.
    """
    chance = torch.Generator().manual_seed(out * inputs)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=chance) / 8 + 0.01

    numbers = torch.randint(
        *RANGES.get(kind, (0, 16 if kind in TABLES else 256)), (out, inputs), generator=chance
    )
    if kind == "fp8":
        numbers[(numbers & 127) == 127] = 1  # not NaN
    size = max(size, {"five": 32, "six": 16}.get(kind, 8))
    groups = -(-inputs // size)
    scales = drawn(out, groups)
    codes = Codes(
        numbers.to(torch.uint8),
        size,
        scales if more else scales.half(),
        "table" if kind in TABLES else "fp8" if kind == "fp8" else "int8",
        TABLES.get(kind),
        drawn(out, groups) if more else None,
        drawn(out, -(-groups // 2)) if more else None,
        2 * size if more else 0,
        torch.randperm(inputs, generator=chance).int() if more else None,
    )
    return CodedWeight.of(codes, dtype)
