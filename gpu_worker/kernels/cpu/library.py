"""The compiled kernels as a library, loaded once, with its thread pool (`src/team.h`).

Functions take addresses and numbers and are called through ctypes. A call costs about a microsecond, and the
library does not depend on versions of Python or PyTorch. The caller keeps tensors alive and checks their
shapes; the library does not.
"""

import ctypes
from functools import cache

import torch
from torch import Tensor

from gpu_worker.errors import KernelError
from gpu_worker.kernels.cpu import build
from gpu_worker.machine.cores import usable
from gpu_worker.machine.huge_pages import return_freed_memory

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""The library's numbers of types of weights and activations."""


def opened(instruction_set: str) -> ctypes.CDLL:
    """The library for an instruction set, compiled if it is not yet. Raises `KernelError`."""
    if instruction_set not in build.supported():
        raise KernelError(f"this machine has no {instruction_set}")
    path = build.library(instruction_set)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelError(f"the compiled CPU kernels cannot be loaded: {error}") from error


@cache
def load(instruction_set: str, threads: int) -> ctypes.CDLL:
    """The library for an instruction set with its threads started. Raises `KernelError`."""
    library = opened(instruction_set)
    library.quire_start(threads, _places(threads))
    return_freed_memory()
    return library


def cores(threads: int) -> list[int]:
    """The core of each thread of the pool, the caller's first. Empty if the number of threads and cores
    differ.

    Linux often puts a woken thread on the core of the thread that wakes it, and then both wait. A pool that
    does not use all cores may share them with another pool, and is not pinned.
    """
    found = usable()
    return found if len(found) == threads else []


def _places(threads: int) -> ctypes.Array[ctypes.c_int] | None:
    found = cores(threads)
    return (ctypes.c_int * threads)(*found) if found else None


def compiler(library: ctypes.CDLL) -> str:
    """The compiler that has made a library, and its version."""
    library.quire_compiler.restype = ctypes.c_char_p
    made_by: bytes = library.quire_compiler()
    return made_by.decode()


def address(tensor: Tensor | None) -> int | None:
    """Address of a tensor's first number; None, which is null, for None. For arguments of type `c_void_p`."""
    return None if tensor is None else tensor.data_ptr()
