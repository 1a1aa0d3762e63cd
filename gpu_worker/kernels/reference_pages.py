"""KV pages of int8 in plain PyTorch: each row, a position as one head sees it, with a scale of its own.

keys         [num_blocks, kv_heads, block_size, head_dim]   whole numbers from -127 to 127
key_scales   [num_blocks, kv_heads, block_size]             what one is worth: the largest / 127
"""

import torch
from torch import Tensor

LEAST = 1e-30
"""Rows whose largest number is smaller are zero: its inverse would be infinite."""


def quantized(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [..., head_dim] as int8 and their scales, float32 [...]. A row with a NaN has it as its scale."""
    rows = rows.float()
    largest = rows.abs().amax(-1)
    largest = torch.where(largest < LEAST, 0.0, largest)
    inverse = torch.where(largest == 0, 0.0, 127 / largest)
    return (rows * inverse[..., None]).round().nan_to_num().to(torch.int8), largest / 127


def widened(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows int8 [..., head_dim] times their scales [...], rounded to `dtype`."""
    return (numbers * scales[..., None]).to(dtype)
