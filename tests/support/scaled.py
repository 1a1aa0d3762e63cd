"""Weights that were quantized before."""

import torch

from gpu_worker.kernels.codes import CodedWeight, Codes
from gpu_worker.kernels.products import FP4, GROUP, ScaledWeight


def shifted(out: int, inputs: int, dtype: torch.dtype = torch.float32) -> ScaledWeight:
    """With zero points, one for each 64 inputs."""
    weight = scaled(out, inputs, dtype)
    zeros = torch.randint(-8, 8, (out, -(-inputs // 64)), generator=torch.Generator().manual_seed(out))
    shifts = zeros * weight.scales.float()[:, ::2]
    scales = weight.scales[:, ::2].repeat_interleave(2, 1)[:, : weight.scales.shape[1]]
    each = scales.float().repeat_interleave(GROUP, 1)[:, :inputs]
    numbers = (weight + 0).float() / weight.scales.float().repeat_interleave(GROUP, 1)[:, :inputs]
    moved = (numbers.round() + zeros.repeat_interleave(64, 1)[:, :inputs]) * each
    return ScaledWeight.of(moved.to(dtype), scales, shifts, 64)


def scaled(out: int, inputs: int, dtype: torch.dtype = torch.float32) -> ScaledWeight:
    """No group has its scale's -8, by which back ends would find the scale themselves."""
    chance = torch.Generator().manual_seed(out)
    numbers = torch.randint(-5, 7, (out, inputs), generator=chance)
    scales = (torch.rand(out, -(-inputs // GROUP), generator=chance) / 8 + 0.01).half()
    each = scales.float().repeat_interleave(GROUP, 1)[:, :inputs]
    return ScaledWeight.of((numbers * each).to(dtype), scales)


def scaled_fp4(out: int, inputs: int, dtype: torch.dtype = torch.float32) -> ScaledWeight:
    """Numbers of fp4, with powers of two as scales."""
    chance = torch.Generator().manual_seed(out)
    numbers = FP4[torch.randint(0, 16, (out, inputs), generator=chance)]
    scales = torch.randint(-9, -2, (out, -(-inputs // GROUP)), generator=chance).float().exp2()
    each = scales.repeat_interleave(GROUP, 1)[:, :inputs]
    return ScaledWeight.of((numbers * each).to(dtype), scales.half(), kind="fp4")


def fp8_groups(out: int, inputs: int, size: int = 64, dtype: torch.dtype = torch.float32) -> CodedWeight:
    """Numbers of fp8 with a scale for each `size` inputs of an output."""
    chance = torch.Generator().manual_seed(out)
    numbers = torch.randn((out, inputs), generator=chance).to(torch.float8_e4m3fn).view(torch.uint8)
    scales = torch.rand((out, -(-inputs // size)), generator=chance) / 8 + 0.01
    return CodedWeight.of(Codes(numbers, size, scales, "fp8"), dtype)
