"""What a GPU can do, by its compute capability (CUDA C++ Programming Guide, "Compute Capabilities")."""

from functools import cache

import torch


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a GPU; (0, 0) of a CPU, where Triton interprets."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may have."""
    major, minor = capability(device)
    if major in (9, 10):
        return 227 << 10
    return (163 if (major, minor) in ((8, 0), (8, 7)) else 99) << 10


def stages(most: int, each: int, beside: int, shared_memory: int) -> int:
    """Stages of a pipeline whose loads fit into the shared memory, `most` at most. Triton keeps the loads of
    all stages but one there.

    `each`: bytes of a stage. `beside`: bytes of what else is there.
    """
    return max(1, min(most, 1 + (shared_memory - beside) // each))


def has_tensor_memory(device: torch.device) -> bool:
    """Whether products of 64 rows or more have their sums in tensor memory, as on data-centre Blackwell."""
    return capability(device)[0] == 10
