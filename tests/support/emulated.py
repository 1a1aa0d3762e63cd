"""The GPU back end with tensors of the CPU, compiled as for a GPU: see `tests/support/ptx/`.

Triton has to be imported with TRITON_INTERPRET=0.
"""

from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.triton import gpu
from gpu_worker.kernels.triton.copies import BlockCopies
from gpu_worker.kernels.triton.kernels import INTERPRETED, TritonKernels
from tests.support.ptx.driver import EmulatedDriver, activate


def emulate(capability: int) -> EmulatedDriver:
    """From here on kernels run as for a GPU of that compute capability: 80 or 90."""
    driver = activate(capability)

    def begin(kernels: Any, device: torch.device) -> None:
        kernels._device, kernels._processors = device, INTERPRETED

    copy = BlockCopies.__call__

    def with_pages(copies: Any, sources: Tensor, targets: Tensor) -> None:
        driver.further = copies._tensors
        copy(copies, sources, targets)
        driver.further = ()

    gpu.capability = lambda device: divmod(capability, 10)  # type: ignore[assignment]
    TritonKernels.__init__ = begin  # type: ignore[assignment,method-assign]
    BlockCopies.__call__ = with_pages  # type: ignore[method-assign]
    return driver
