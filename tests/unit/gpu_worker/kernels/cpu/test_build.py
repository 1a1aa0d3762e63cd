"""The kernels of a processor that this machine has not: compiled for it, and run in an emulator."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_worker.kernels.cpu.build import COMMON, INSTRUCTION_SETS, SOURCES

SELF_CHECK = Path(__file__).parents[4] / "support" / "self_check.cpp"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"


@pytest.mark.timeout(600)
@pytest.mark.skipif(platform.machine() == "aarch64", reason="all other tests run on it")
@pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
    reason=f"needs {COMPILER} and {EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
def test_an_arm_processor_computes_what_plain_loops_do(tmp_path: Path) -> None:
    program = tmp_path / "self_check"
    flags = [flag for flag in (*COMMON, *INSTRUCTION_SETS["portable"]) if flag not in ("-O3", "-shared")]
    sources = [SELF_CHECK, *sorted(SOURCES.glob("*.cpp"))]
    compile_it = [COMPILER, *flags, "-O1", f"-I{SOURCES}", *map(str, sources), "-o", str(program)]
    done = subprocess.run(compile_it, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    checked = subprocess.run(
        [EMULATOR, "-L", LIBRARIES, str(program)], capture_output=True, text=True, check=False
    )
    lines = checked.stdout.splitlines()
    assert len(lines) > 400
    assert [line for line in lines if not line.startswith("ok")] == []
    assert checked.returncode == 0, checked.stderr
