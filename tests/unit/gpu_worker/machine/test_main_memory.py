"""What is left of main memory, with and without a container around the process."""

import os
from pathlib import Path

import pytest

from gpu_worker.machine import control_groups, main_memory

GIB = 2**30


OF_MACHINE = main_memory._of_machine


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(main_memory, "_of_machine", lambda: 100 * GIB)
    return tmp_path


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_without_groups_it_is_what_the_machine_has(places: Path) -> None:
    assert main_memory.available() == 100 * GIB
    write(places, membership="0::/", memory__max="max", memory__current="5", memory__stat="inactive_file 1")
    assert main_memory.available() == 100 * GIB


def test_the_narrowest_group_counts(places: Path) -> None:
    """A limit above the process's own group, as a container's around a service in it."""
    write(places, membership="1:cpu:/\n0::/outer/inner")
    stat = f"anon {GIB}\ninactive_file {GIB}"
    write(places / "outer", memory__max=str(8 * GIB), memory__current=str(3 * GIB), memory__stat=stat)
    write(places / "outer/inner", memory__max="max", memory__current=str(GIB), memory__stat=stat)
    assert main_memory.available() == 6 * GIB


def test_a_group_that_is_slowed_down_before_its_limit(places: Path) -> None:
    """As systemd's `MemoryHigh`. Beyond it processes stand still."""
    write(places, membership="0::/own")
    high = {"memory__high": str(4 * GIB), "memory__current": str(GIB), "memory__stat": "inactive_file 0"}
    write(places / "own", memory__max="max", **high)
    assert main_memory.available() == 3 * GIB
    write(places / "own", memory__max=str(3 * GIB), **high)
    assert main_memory.available() == 2 * GIB
    write(places / "own", memory__max="max", **high | {"memory__current": str(5 * GIB)})
    assert main_memory.available() == 0


def test_a_group_that_does_not_say_what_can_be_dropped(places: Path) -> None:
    """As gVisor's."""
    write(places, membership="0::/", memory__max=str(8 * GIB), memory__current=str(3 * GIB))
    assert main_memory.available() == 5 * GIB


def test_groups_of_version_1(places: Path) -> None:
    """Within a container its group is mounted as the root, whatever path it has outside."""
    write(places, membership="4:cpuset,memory:/outside/7f3a")
    write(
        places / "memory",
        memory__limit_in_bytes=str(4 * GIB),
        memory__usage_in_bytes=str(GIB),
        memory__stat="total_inactive_file 0",
    )
    assert main_memory.available() == 3 * GIB


def test_here_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert main_memory.available() > 0


def test_a_system_that_does_not_say_what_is_free_gives_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main_memory, "MEMINFO", tmp_path / "none")
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert OF_MACHINE() == physical // 2
