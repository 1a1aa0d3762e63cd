"""Formats of pages by name, as the Triton kernels have them: see `KvFormat` and `format.py`."""

from collections.abc import Callable

import torch

from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.reference.kv.plain import Plain
from gpu_worker.kernels.triton.kv.fp8 import TritonFp8
from gpu_worker.kernels.triton.kv.int8 import TritonInt8
from gpu_worker.kernels.triton.kv.plain import TritonPlain

FORMATS: dict[str, Callable[[torch.dtype, torch.device], Plain]] = {
    AUTO: TritonPlain,
    "int8": TritonInt8,
    "fp8": TritonFp8,
}
"""Each takes the type of the activations, and the device that computes."""
