"""Pages as the Triton back end has them, in memory of the CPU."""

from functools import partial

import torch

from gpu_worker.kernels.attention import KvFormat
from gpu_worker.kernels.triton.kv import FORMATS
from tests.support import paged


def kv_format(name: str, dtype: torch.dtype) -> KvFormat:
    """As `TritonKernels.kv_format`."""
    return FORMATS[name](dtype, torch.device("cpu"))


make_paged = partial(paged.make_paged, kv_format=kv_format)
"""See the other one."""
