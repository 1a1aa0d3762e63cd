"""Weights with the codes of a checkpoint."""

import torch

from gpu_worker.kernels.codes import CodedWeight, Codes

KINDS = ("int8", "whole", "half", "fp8", "table")
ROUNDED = ("int8", "whole", "half")
"""Kinds with which activations are rounded."""
TABLES = {
    "whole": torch.arange(-8.0, 8.0),
    "half": torch.arange(-7.5, 8.5, 1.0),
    "table": torch.randn(16, generator=torch.Generator().manual_seed(0)),
}
"""Values of codes of 4 bits: whole numbers, halves, and others."""


def coded(
    kind: str, out: int, inputs: int, dtype: torch.dtype = torch.float32, more: bool = False
) -> CodedWeight:
    """Random codes of a kind in groups of 16 inputs.

    `more`: with shifts, factors of two groups, scales of float32, and another order of inputs.
    """
    chance = torch.Generator().manual_seed(out * inputs)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=chance) / 8 + 0.01

    numbers = torch.randint(16 if kind in TABLES else 256, (out, inputs), generator=chance)
    if kind == "fp8":
        numbers[(numbers & 127) == 127] = 1  # not NaN
    size, groups = 16, -(-inputs // 16)
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
