"""What is measured on a machine is measured once, by one process at a time, and found again."""

import fcntl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_worker.kernels.cpu import build
from gpu_worker.startup import kept


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(build, "cache", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def asked(measure: Callable[[], int]) -> int:
    return kept.once("number", measure, lambda number: [number], lambda found: int(found[0]))


def test_measured_once(folder: Path) -> None:
    assert asked(lambda: 3) == 3
    assert asked(lambda: 4) == 3
    (folder / "number.json").write_text("[]")
    assert asked(lambda: 5) == 5


def test_workers_that_start_together_find_the_same() -> None:
    """Without the lock each measures while the other does, and the two may choose differently."""
    numbers, measuring = iter(range(100)), threading.Semaphore(1)

    def measure() -> int:
        assert measuring.acquire(blocking=False), "two measure at once"
        threading.Event().wait(0.1)
        measuring.release()
        return next(numbers)

    with ThreadPoolExecutor(4) as pool:
        assert {each.result() for each in [pool.submit(asked, measure) for _ in range(4)]} == {0}


def test_one_that_hangs_while_it_measures_keeps_nobody_for_ever(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(kept, "PATIENCE", 0.01)
    folder.mkdir()
    with (folder / "number.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert asked(lambda: 7) == 7


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch, caplog) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(build, "cache", lambda: tmp_path / "file")
    assert asked(lambda: 1) == 1
    assert asked(lambda: 2) == 2
    assert "cannot be kept" in caplog.text


def test_an_instruction_set_that_is_forced_is_another_machine(monkeypatch) -> None:
    names = {kept.machine("products"), kept.machine("rates")}
    for name in kept.FORCED:
        with monkeypatch.context() as forced:
            forced.setenv(name, "AVX2")
            names.add(kept.machine("products"))
    assert len(names) == 2 + len(kept.FORCED)
