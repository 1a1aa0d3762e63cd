"""Formats of pages by name, in plain PyTorch: see `KvFormat`."""

from collections.abc import Callable

import torch

from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.reference.kv.fp8 import Fp8
from gpu_worker.kernels.reference.kv.int8 import Int8
from gpu_worker.kernels.reference.kv.plain import Plain

FORMATS: dict[str, Callable[[torch.dtype], Plain]] = {AUTO: Plain, "int8": Int8, "fp8": Fp8}
"""Each takes the type of the activations."""
