"""Copies between host and device that do not wait.

On a GPU copies go from and to pinned memory, on the stream that the steps run on, and are done in its order.
On a CPU nothing is copied.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The host tensor `tensor` on the device."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def indices(array: NDArray[np.integer], device: torch.device) -> Tensor:
    """The host array `array` on the device: int64 of the same shape. On a CPU the two may share memory."""
    return to_device(torch.from_numpy(array.astype(np.int64, copy=False)), device)


def send_to(tensor: Tensor, target: Tensor) -> None:
    """Copy the host tensor `tensor` into `target`, a tensor on the device of the same shape."""
    target.copy_(tensor.pin_memory() if target.is_cuda else tensor, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """The device tensor `tensor` in main memory. Its numbers are there once the device has done the copy."""
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
