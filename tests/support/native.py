"""The compiled kernels with a team of threads of one's own."""

import ctypes
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from gpu_worker.errors import KernelError
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

IN_SOFTWARE = "amx in software"
"""The kernels for matrix units, where this machine has none, with the units' instructions in software."""

HAS_NO_UNITS = build.MACHINE == "x86_64" and "amx" not in build.supported()
WITH_UNITS = [*TESTED, *([IN_SOFTWARE] if HAS_NO_UNITS else [])]
"""As `TESTED`, for tests of what matrix units compute, too."""

_copies = tempfile.TemporaryDirectory(prefix="quire-kernels-")


@cache
def with_team(instruction_set: str, threads: int) -> ctypes.CDLL:
    """A copy of the library for an instruction set: a library has one team, however often it is loaded.

    What is tested above the kernels computes in the library itself, with one thread: several processes test
    at the same time, and a team waits for the slowest of its threads.
    """
    copy = Path(_copies.name) / f"{instruction_set}-{threads}.so"
    library = ctypes.CDLL(str(shutil.copy(library_of(instruction_set), copy)))
    assert library.quire_start(threads, None) == threads
    return library


def library_of(name: str) -> Path:
    """The compiled library of one of `WITH_UNITS`."""
    return _in_software() if name == IN_SOFTWARE else build.library(name)


def _in_software() -> Path:
    """Compiled for what this machine has. AVX-512 is in software, too, unless the machine has all of it that
    processors with matrix units have."""
    best = next(name for name in build.supported() if name in ("avx512_bf16", "avx2", "portable"))
    headers = ["amx_in_software.h", *(["avx512_in_software.h"] if best != "avx512_bf16" else [])]
    paths = [Path(__file__).parent / header for header in headers]
    flags = [*build.COMMON, *build.INSTRUCTION_SETS[best], "-O1"]  # -O3 takes compilers twice as long
    fingerprint = build._fingerprint([*flags, *(path.read_text() for path in paths)])
    library = build.cache() / f"quire-amx-in-software-{fingerprint}.so"
    if not library.exists():
        included = [argument for path in paths for argument in ("-include", str(path))]
        build._compile([build._compiler(), *flags, *included], library)
    return library


def main() -> None:
    """Compile all that is tested: two processes that test would compile it twice."""
    try:
        for name in WITH_UNITS:
            library_of(name)
    except KernelError as error:
        print(f"CPU kernels: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
