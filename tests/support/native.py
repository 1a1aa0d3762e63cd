"""The compiled kernels with a team of threads of one's own."""

import ctypes
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from gpu_worker.kernels.cpu import build
from gpu_worker.machine.onednn import has_onednn_bfloat16

NO_ONEDNN_BFLOAT16 = (
    ""
    if has_onednn_bfloat16()
    else "oneDNN multiplies no bfloat16 on this processor: PyTorch asks for AVX-512 with BW, VL and DQ"
)
"""Why oneDNN's products cannot be tested in bfloat16; empty where they can."""

ALL = os.environ.get("TEST_KERNELS") == "all"
"""All that kernels are compiled to is tested. `make cpu-check` asks for it."""

SOME = {*build.supported()[:2], "avx2", "portable"}
TESTED = [name for name in build.supported() if name in SOME or ALL]
"""Of this machine's instruction sets those that kernels are tested with, the best first. Others are the best
of other machines."""

WITHOUT_UNITS = [name for name in TESTED if name != "amx"]
"""The same but for matrix units."""

_copies = tempfile.TemporaryDirectory(prefix="quire-kernels-")


@cache
def with_team(instruction_set: str, threads: int) -> ctypes.CDLL:
    """A copy of the library for an instruction set: a library has one team, however often it is loaded.

    What is tested above the kernels computes in the library itself, with one thread: several processes test
    at the same time, and a team waits for the slowest of its threads.
    """
    copy = Path(_copies.name) / f"{instruction_set}-{threads}.so"
    library = ctypes.CDLL(str(shutil.copy(build.library(instruction_set), copy)))
    assert library.quire_start(threads, None) == threads
    return library


if __name__ == "__main__":
    print(*TESTED)
