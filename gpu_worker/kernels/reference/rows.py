"""Rows of numbers of one byte, and what their scales make of them, in plain PyTorch.

int8     whole numbers from -127 to 127
fp8      e4m3: a sign, 4 bits of exponent, 3 of fraction; 2^-9 to 448, no infinity
"""

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn

LEAST = 1e-30
"""Rows whose largest number is smaller are zero: its inverse would be infinite."""

LARGEST = 448.0
"""Of fp8."""

ROTATED = 16
"""Numbers that are rotated together."""


def quantized(rows: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """Rows [..., size] as int8 or fp8, and their scales, float32 [...]: a row's largest / 127, or / 448.

    The scale of a row with a NaN is NaN.
    """
    rows, most = rows.float(), LARGEST if dtype == FP8 else 127
    largest = rows.abs().amax(-1)
    largest = torch.where(largest < LEAST, 0.0, largest)
    inverse = torch.where(largest == 0, 0.0, most / largest)
    numbers = rows * inverse[..., None]
    return (numbers if dtype == FP8 else numbers.round().nan_to_num()).to(dtype), largest / most


def rotated(rows: Tensor) -> Tensor:
    """Rows [..., size] in float32, each 16 numbers times the Hadamard matrix, which is its own inverse.

    It leaves products of two rows as they are, and makes a number that is much larger than the others 16
    numbers of a quarter of its size ("QuaRot", Ashkboos et al., 2024). Numbers of the end that are fewer than
    16 stay as they are.
    """
    whole = rows.shape[-1] // ROTATED * ROTATED
    matrix, smallest = (
        torch.ones(1, 1, device=rows.device),
        torch.tensor([[1.0, 1], [1, -1]], device=rows.device),
    )
    while len(matrix) < ROTATED:
        matrix = torch.kron(matrix, smallest)
    first = (
        rows[..., :whole].float().reshape(*rows.shape[:-1], whole // ROTATED, ROTATED) @ matrix / ROTATED**0.5
    )
    return torch.cat((first.flatten(-2), rows[..., whole:].float()), -1)


def multiples(rows: Tensor, scales: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """As `quantized`, for rows that are multiples of known scales, float32 [...]."""
    numbers = rows.float() * torch.where(scales == 0, 0.0, 1 / scales)[..., None]
    if dtype == FP8:
        return numbers.clamp(-LARGEST, LARGEST).to(dtype), scales
    return numbers.round().clamp(-128, 127).to(dtype), scales


def saturated(rows: Tensor, scales: Tensor) -> Tensor:
    """Rows [..., size] divided by scales [...], as fp8; what is too large becomes the largest."""
    return (rows.float() * (1 / scales)[..., None]).clamp(-LARGEST, LARGEST).to(FP8)


def widened(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows [..., size] times their scales [...], rounded to `dtype`."""
    return (numbers * scales[..., None]).to(dtype)
