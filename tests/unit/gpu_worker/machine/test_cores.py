"""Cores, also on systems that do not tell which of them a process may use."""

import os
from pathlib import Path

import pytest

from gpu_worker.machine import control_groups, cores
from gpu_worker.machine.cores import granted, neighbouring, restrict_to, usable


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system restricts no process to cores")
def test_a_restricted_process_has_only_those() -> None:
    before = usable()
    try:
        restrict_to(before[:1])
        assert usable() == before[:1]
    finally:
        restrict_to(before)


def test_a_system_without_affinities_has_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    restrict_to([0])
    assert usable() == list(range(os.cpu_count() or 1))


@pytest.mark.parametrize(
    ("membership", "files", "threads"),
    [
        ("", {}, 8),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "400000 100000"}, 4),
        ("0::/outer/inner", {"outer/cpu.max": "250000 100000", "outer/inner/cpu.max": "max 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "1600000 100000"}, 8),
        ("3:cpu,cpuacct:/outside", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("3:cpu,cpuacct:/outside", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ("3:cpuset:/\n2:memory:/", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_a_container_has_as_many_threads_as_it_is_granted_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: dict[str, str], threads: int
) -> None:
    monkeypatch.setattr(cores, "usable", lambda: list(range(8)))
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "membership")
    for name, text in {"membership": membership, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n" if text else "")
    assert granted() == threads


def machine(folder: Path, places: dict[int, tuple[int, int, str]]) -> None:
    """The folders of cores. `places`: package, NUMA node and threads of one core, by the core's number."""
    for core, (package, node, threads) in places.items():
        topology = folder / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (folder / f"cpu{core}" / f"node{node}").mkdir()
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "thread_siblings_list").write_text(f"{threads}\n")


def test_cores_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages, whose cores alternate, of two nodes each. The second threads have the higher numbers."""
    monkeypatch.setattr(cores, "PLACES", tmp_path)
    first = {core: (core % 2, core % 4, f"{core},{core + 8}") for core in range(8)}
    machine(tmp_path, first | {core + 8: place for core, place in first.items()})
    nodes = [0, 8, 4, 12], [2, 10, 6, 14], [1, 9, 5, 13], [3, 11, 7, 15]
    assert neighbouring(range(16)) == [core for node in nodes for core in node]
    assert neighbouring([1, 2, 3, 8, 9]) == [8, 2, 1, 9, 3]


def test_cores_of_which_the_system_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "PLACES", tmp_path)
    assert neighbouring([3, 0, 10, 2]) == [0, 2, 3, 10]
    machine(tmp_path, {core: (-1, 0, f"{core}") for core in range(4)})
    assert neighbouring([3, 0, 2]) == [0, 2, 3]
