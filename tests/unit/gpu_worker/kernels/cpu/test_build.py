"""The kernels of a processor that this machine has not: compiled for it, and run in an emulator."""

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_worker.errors import KernelError
from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.cpu.build import COMMON, SETS_OF, SOURCES
from tests.support.native import ALL

SELF_CHECK = Path(__file__).parents[4] / "support" / "self_check.cpp"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"


# AVX-VNNI's instructions as AVX-512 writes them: a processor of either computes the same.
AVX_VNNI = (
    *SETS_OF["x86_64"]["avx2"],
    *("-mavx512vl", "-mavx512vnni", "-U__AVX512F__", "-U__AVX512VL__", "-U__AVX512VNNI__", "-D__AVXVNNI__"),
)

AMX_MACHINE = (
    "avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512vbmi avx512_vnni avx512_bf16 "
    "amx_tile amx_bf16 amx_int8"
)


def check(compiler: str, level: str, set_flags: Sequence[str], tmp_path: Path, *runs_with: str) -> None:
    """Compile the kernels with their own test program, and run it. `level`: -O0 takes half as long as -O1."""
    program = tmp_path / "self_check"
    flags = [flag for flag in (*COMMON, *set_flags) if flag != "-O3"]
    sources = [SELF_CHECK, *sorted(SOURCES.glob("*.cpp"))]
    compile_it = [compiler, *flags, level, f"-I{SOURCES}", *map(str, sources), "-o", str(program)]
    done = subprocess.run(compile_it, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    checked = subprocess.run([*runs_with, str(program)], capture_output=True, text=True, check=False)
    lines = checked.stdout.splitlines()
    assert len(lines) > 400
    assert [line for line in lines if not line.startswith("ok")] == []
    assert checked.returncode == 0, checked.stderr


@pytest.mark.timeout(600)
@pytest.mark.skipif(platform.machine() == "aarch64", reason="TEST_KERNELS=all tests it")
@pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
    reason=f"needs {COMPILER} and {EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
@pytest.mark.parametrize("name", SETS_OF["aarch64"] if ALL else ["neon_dot"])
def test_an_arm_processor_computes_what_plain_loops_do(name: str, tmp_path: Path) -> None:
    level = "-O1" if ALL else "-O0"
    check(COMPILER, level, SETS_OF["aarch64"][name], tmp_path, EMULATOR, "-L", LIBRARIES)


@pytest.mark.timeout(600)
@pytest.mark.skipif("avx512_bf16" not in build.supported(), reason="needs AVX-512's form of the instructions")
@pytest.mark.skipif("avx2_vnni" in build.supported(), reason="TEST_KERNELS=all tests it")
def test_a_processor_with_avx_vnni_computes_what_plain_loops_do(tmp_path: Path) -> None:
    check("g++", "-O0", AVX_VNNI, tmp_path)


@pytest.mark.skipif(not shutil.which("nm"), reason="needs nm (Debian: binutils)")
def test_libraries_in_one_process_do_not_share_functions() -> None:
    """A compiler may mark C++'s tables of functions as unique: the first library's would serve all."""
    library = build.library(build.supported()[0])
    told = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    names = [line.split()[-1].lstrip("_") for line in told.stdout.splitlines()]
    assert [name for name in names if "quire" in name and not name.startswith("quire_")] == []
    assert {"quire_start", "quire_linear", "quire_linear_play", "quire_attend"} <= set(names)


@pytest.mark.parametrize(
    ("machine", "line", "best"),
    [
        ("x86_64", f"flags : {AMX_MACHINE}", "amx"),
        ("x86_64", f"flags : {AMX_MACHINE.removesuffix(' amx_int8')}", "avx512_bf16"),
        ("x86_64", "flags : fpu avx2 fma f16c avx_vnni", "avx2_vnni"),
        ("x86_64", "flags : fpu avx2 fma f16c", "avx2"),
        ("aarch64", "Features : fp asimd asimddp", "neon_dot"),
        ("aarch64", "Features : fp asimd", "portable"),
    ],
)
def test_the_best_instruction_set_of_a_processor(
    monkeypatch: pytest.MonkeyPatch, machine: str, line: str, best: str
) -> None:
    monkeypatch.setattr(build, "INSTRUCTION_SETS", SETS_OF[machine])
    monkeypatch.setattr(build, "_described", lambda: ["model name : one", line])
    monkeypatch.setattr(build, "_may_use_matrix_units", lambda: True)
    assert build.supported()[0] == best


def test_a_system_that_refuses_matrix_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox does not know the system call, or forbids it."""
    monkeypatch.setattr(build, "INSTRUCTION_SETS", SETS_OF["x86_64"])
    monkeypatch.setattr(build, "_described", lambda: [f"flags : {AMX_MACHINE}"])
    monkeypatch.setattr(build, "_may_use_matrix_units", lambda: False)
    assert build.supported()[0] == "avx512_bf16"


def test_an_image_needs_no_compiler_and_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = build.supported()[0]
    monkeypatch.setattr(build, "COMPILED", tmp_path)
    shipped = tmp_path / build.library(name).name
    shipped.touch()
    monkeypatch.setattr(build, "cache", lambda: tmp_path / "cache")
    assert build.library(name) == shipped


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are instruction sets of x86-64")
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
@pytest.mark.parametrize("name", sorted(set(SETS_OF["x86_64"]) - set(build.supported())))
def test_kernels_compile_for_a_processor_that_this_one_is_not(name: str) -> None:
    for source in SOURCES.glob("*.cpp"):
        command = ["g++", *COMMON, *SETS_OF["x86_64"][name], "-O0", "-fsyntax-only", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_machine_that_does_not_say_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    assert build.supported() == ["portable"]
    assert build.processor().startswith(platform.machine())


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux")
@pytest.mark.parametrize("cache", ["/proc/self", "/" + 300 * "x"], ids=["read-only", "unreadable"])
def test_a_cache_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    """Then PyTorch computes."""
    monkeypatch.setattr(build, "cache", lambda: Path(cache))
    monkeypatch.setattr(build, "_compiler", lambda: "g++")
    with pytest.raises(KernelError, match="the compiled CPU kernels cannot be kept: "):
        build.library("portable")


def test_machines_that_share_a_home_have_their_own_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compiled for a newer C library is not loaded by an older one."""
    monkeypatch.setattr(build, "cache", lambda: tmp_path)
    monkeypatch.setattr(build, "_compile", lambda command, path: path.touch())
    found = set()
    for version in ("2.34", "2.39"):
        monkeypatch.setattr(platform, "libc_ver", lambda version=version: ("glibc", version))
        found.add(build.library("portable"))
    assert len(found) == 2
