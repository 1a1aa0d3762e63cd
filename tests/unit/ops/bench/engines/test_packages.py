"""What a process with a virtual environment of its own has loaded."""

import mmap
import os
from pathlib import Path

import pytest

from ops.bench.engines.packages import loaded


def package(folder: Path, name: str, version: str, library: str) -> Path:
    """Install a package of one library. Returns the library's path."""
    file = folder / library
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "RECORD").write_text(f"{library},,\n")
    return file


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc: memory maps are read from there")
def test_packages_are_those_with_a_library_in_memory(tmp_path: Path) -> None:
    folder = tmp_path / "venv" / "site-packages"
    library = package(folder, "Some_Engine", "1.2.0", "some/lib engine.so")
    package(folder, "idle-engine", "3.0", "idle/lib.so")
    names = frozenset({"some-engine", "idle-engine"})
    assert loaded(os.getpid(), names) == {}
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert loaded(os.getpid(), names) == {"some-engine": "1.2.0"}
        assert loaded(os.getpid(), frozenset({"idle-engine"})) == {}


def test_a_process_that_is_gone_has_loaded_nothing() -> None:
    assert loaded(2**22 + 1) == {}  # above the highest process id
