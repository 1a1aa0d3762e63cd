"""What the kernels multiply matrices of."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def factor(query: Tensor) -> tl.dtype:
    """Type of the numbers that are multiplied. (The interpreter knows no products of bfloat16.)"""
    if query.dtype == torch.bfloat16 and not triton.knobs.runtime.interpret:
        return tl.bfloat16
    return tl.float16 if query.dtype == torch.float16 else tl.float32
