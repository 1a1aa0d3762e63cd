"""The compiled kernels as a library: loaded once, with its team of threads.

Functions take addresses and numbers and are called through ctypes: a call costs about a microsecond,
and the library depends on no version of Python or PyTorch. Whoever calls keeps the tensors alive and
checks their shapes: the library does not.
"""

import ctypes
import os
from functools import cache

import torch
from torch import Tensor

from gpu_worker.errors import KernelError
from gpu_worker.kernels.cpu import build
from gpu_worker.machine.huge_pages import return_freed_memory

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""What the library calls a type of weights and activations."""


@cache
def load(instruction_set: str, threads: int) -> ctypes.CDLL:
    """The library for an instruction set with its threads started. Raises `KernelError`."""
    if instruction_set not in build.supported():
        raise KernelError(f"this machine has no {instruction_set}")
    path = build.library(instruction_set)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelError(f"the compiled CPU kernels cannot be loaded: {error}") from error
    library.quire_start(threads, _places(threads))
    return_freed_memory()
    return library


def cores(threads: int) -> list[int]:
    """The core for each of the team's threads, the caller's first; none if it has fewer threads than cores.

    A thread that is woken is often put on the core of the one that wakes it, and then both wait. A team
    that does not take all cores may have to share them with another one: there the system decides.
    """
    found = sorted(os.sched_getaffinity(0))
    return found if len(found) == threads else []


def _places(threads: int) -> ctypes.Array[ctypes.c_int] | None:
    found = cores(threads)
    return (ctypes.c_int * threads)(*found) if found else None


def address(tensor: Tensor | None) -> int | None:
    """Address of a tensor's first number; None (null) for None. For arguments declared `c_void_p`."""
    return None if tensor is None else tensor.data_ptr()
