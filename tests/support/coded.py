"""Weights with the codes of a checkpoint."""

import torch

from gpu_worker.kernels.codes import CodedWeight, Codes

KINDS = ("table", "int8", "fp8")


def coded(
    kind: str, out: int, inputs: int, dtype: torch.dtype = torch.float32, more: bool = False
) -> CodedWeight:
    """Random codes of a kind in groups of 16 inputs.

    `more`: with shifts, factors of two groups, scales of float32, and another order of inputs.
    """
    chance = torch.Generator().manual_seed(out * inputs)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=chance) / 8 + 0.01

    numbers = torch.randint(16 if kind == "table" else 256, (out, inputs), generator=chance)
    if kind == "fp8":
        numbers[(numbers & 127) == 127] = 1  # not NaN
    size, groups = 16, -(-inputs // 16)
    scales = drawn(out, groups)
    codes = Codes(
        numbers.to(torch.uint8),
        size,
        scales if more else scales.half(),
        kind,  # type: ignore[arg-type]
        torch.randn(16, generator=chance) if kind == "table" else None,
        drawn(out, groups) if more else None,
        drawn(out, -(-groups // 2)) if more else None,
        2 * size if more else 0,
        torch.randperm(inputs, generator=chance).int() if more else None,
    )
    return CodedWeight.of(codes.dequantized().to(dtype), codes)
