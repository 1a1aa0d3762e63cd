"""Types of the operands of matrix products."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def factor(query: Tensor) -> tl.dtype:
    """Type of the operands of products with `query`. The interpreter cannot multiply bfloat16."""
    if query.dtype == torch.bfloat16 and not triton.knobs.runtime.interpret:
        return tl.bfloat16
    return tl.float16 if query.dtype == torch.float16 else tl.float32
