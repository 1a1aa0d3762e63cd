"""Numbers between host and device: nobody waits for a copy until its end matters.

On a GPU copies go to the stream that the steps run on, in whose order they are done, from and to pinned
memory. On a CPU there is nothing to copy.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def indices(array: NDArray[np.integer], device: torch.device) -> Tensor:
    """An array of the host on the device, int64 of the same shape. On a CPU the two may share memory."""
    return to_device(torch.from_numpy(array.astype(np.int64, copy=False)), device)


def send_to(tensor: Tensor, target: Tensor) -> None:
    """A tensor of the host into one of the device that is there already."""
    target.copy_(tensor.pin_memory() if target.is_cuda else tensor, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """A tensor of the device in main memory, once the device has come to the copy."""
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
