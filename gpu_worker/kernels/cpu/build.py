"""Compiles the C++ kernels, once per machine and version of their sources.

There is a library for each instruction set, all from the same sources. The machine's own is compiled on first
use (or by `python -m gpu_worker.kernels.cpu.build`, which installation runs) and kept in a cache, under a
name that changes with sources, flags and C library. A machine whose cache has the library needs no compiler,
nor does an image that has it beside the sources.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_worker.errors import KernelError
from ops.runtime.user_directory import user_directory

SOURCES = Path(__file__).parent / "src"
COMPILED = Path(__file__).parent / "compiled"
"""Libraries that an image comes with."""

_AVX512 = (
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512dq",
    "-mfma",
    "-mf16c",
    "-mprefer-vector-width=512",
)

_AVX2 = ("-mavx2", "-mfma", "-mf16c")

_AVX512_BF16 = (*_AVX512, "-mavx512vnni", "-mavx512vbmi", "-mavx512bf16")

SETS_OF: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "amx": (*_AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        "avx512_bf16": _AVX512_BF16,
        "avx512_vnni": (*_AVX512, "-mavx512vnni"),
        "avx512": _AVX512,
        "avx2_vnni": (*_AVX2, "-mavxvnni"),
        "avx2": _AVX2,
        "portable": (),
    },
    "aarch64": {
        "neon_dot": ("-march=armv8.2-a+dotprod",),
        "portable": (),
    },
}
"""Compiler flags of each instruction set of a kind of processor, best first."""

MACHINE = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())
INSTRUCTION_SETS = SETS_OF.get(MACHINE, {"portable": ()})

_AVX512_NEEDS = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma", "f16c"}
_AVX512_BF16_NEEDS = _AVX512_NEEDS | {"avx512_vnni", "avx512vbmi", "avx512_bf16"}
_NEEDS = {
    "amx": _AVX512_BF16_NEEDS | {"amx_tile", "amx_bf16", "amx_int8"},
    "avx512_bf16": _AVX512_BF16_NEEDS,
    "avx512_vnni": _AVX512_NEEDS | {"avx512_vnni"},
    "avx512": _AVX512_NEEDS,
    "avx2_vnni": {"avx2", "fma", "f16c", "avx_vnni"},
    "avx2": {"avx2", "fma", "f16c"},
    "neon_dot": {"asimddp"},
    "portable": set[str](),
}
"""Features that each instruction set needs, by their names in /proc/cpuinfo."""

_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18
"""The system call, its operation, and the state, by Linux's numbers for x86-64."""

# Finite-math shortcuts stay off: infinities mask scores, and NaN must stay visible.
COMMON = (
    "-std=c++20",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-Wno-psabi",
)


def supported() -> list[str]:
    """The instruction sets that this machine has, best first."""
    found = features()
    return [
        name
        for name in INSTRUCTION_SETS
        if _NEEDS[name] <= found and (name != "amx" or _may_use_matrix_units())
    ]


@functools.cache
def _may_use_matrix_units() -> bool:
    """Ask Linux for the registers of matrix units, which a process has from then on. A sandbox may refuse."""
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA) == 0)


def processor() -> str:
    """The processor's name and features: two machines of the same are as fast at the same."""
    named = {
        line for line in _described() if line.startswith(("model name", "flags", "CPU part", "Features"))
    }
    return "\n".join([platform.machine(), platform.processor(), *sorted(named)])


def features() -> set[str]:
    """Features of the processor, by their names in /proc/cpuinfo."""
    if platform.system() == "Darwin" and MACHINE == "aarch64":
        return {"asimddp"}  # all of Apple's have it
    for line in _described():
        if line.startswith(("flags", "Features")):
            return set(line.split(":", 1)[1].split())
    return set()


def _described() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def library(instruction_set: str) -> Path:
    """Path of the compiled library. Raises `KernelError`, in one line, if it cannot be compiled or kept."""
    flags = [*COMMON, *INSTRUCTION_SETS[instruction_set]]
    name = f"quire-{instruction_set}-{_fingerprint(flags)}.so"
    if (shipped := COMPILED / name).exists():
        return shipped
    path = cache() / name
    try:
        if not path.exists():
            _compile([_compiler(), *flags], path)
    except OSError as error:  # of another user's folder, say, or of a file system that is full
        raise KernelError(f"the compiled CPU kernels cannot be kept: {error}") from error
    return path


def _compile(command: list[str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Compiled in a temporary folder and then moved: another process may compile the same library.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        sources = sorted(SOURCES.glob("*.cpp"), key=lambda source: -source.stat().st_size)
        objects = [str(made.with_name(f"{source.stem}.o")) for source in sources]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # each thread waits for a compiler
            jobs = zip(sources, objects, strict=True)
            list(pool.map(lambda job: _run([*command, "-c", str(job[0]), "-o", job[1]]), jobs))
        _run([*command, "-shared", *objects, "-o", str(made)])
        made.replace(path)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise KernelError(f"{command[0]} cannot compile the CPU kernels: {reason}")


def _compiler() -> str:
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        if name and (path := shutil.which(name)):
            return path
    raise KernelError("no C++ compiler for the CPU kernels (Debian: apt install g++)")


def cache() -> Path:
    """Where compiled libraries are kept, and what was measured of them."""
    return user_directory("XDG_CACHE_HOME", ".cache")


def _fingerprint(flags: list[str]) -> str:
    """A hash of flags, machine, C library and sources. An older C library does not load what was compiled for
    a newer one, and machines may share a home."""
    made_for = (platform.machine(), *platform.libc_ver())
    digest = hashlib.blake2b("\0".join([*flags, *made_for]).encode(), digest_size=8)
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


def main() -> None:
    """Compile for this machine, or for the instruction sets named (`supported`: all that it has; `all`)."""
    wanted = sys.argv[1:] or supported()[:1]
    several = {"supported": supported(), "all": list(INSTRUCTION_SETS)}
    names = several.get(wanted[0], wanted)
    try:
        for name in names:
            print(f"CPU kernels ({name}): {library(name)}", flush=True)
    except KernelError as error:
        print(f"CPU kernels: {error}; PyTorch computes instead, more slowly", file=sys.stderr)


if __name__ == "__main__":
    main()
