"""Cores, also on systems that do not tell which of them a process may use."""

import os

import pytest

from gpu_worker.machine.cores import restrict_to, usable


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
