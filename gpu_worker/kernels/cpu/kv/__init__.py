"""Formats of pages by name, as the C++ kernels have them: see `KvFormat`."""

from collections.abc import Callable

import torch

from gpu_worker.kernels.cpu.kv.int8 import CpuInt8
from gpu_worker.kernels.cpu.kv.plain import CpuPlain
from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.reference.kv.plain import Plain

FORMATS: dict[str, Callable[[torch.dtype], Plain]] = {AUTO: CpuPlain, "int8": CpuInt8}
"""Each takes the type of the activations."""
