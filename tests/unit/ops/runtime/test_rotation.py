from errno import ENOSPC
from pathlib import Path

import pytest

from ops.runtime.rotation import KEPT, rotate


def test_a_log_becomes_the_newest_old_one_and_the_oldest_goes(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    for number in range(KEPT + 2):
        log.write_text(f"start {number}")
        assert rotate(log)
        assert not log.exists()
    olds = [log.with_name(f"worker.log.{number}").read_text() for number in range(1, KEPT + 1)]
    assert olds == [f"start {number}" for number in range(KEPT + 1, 1, -1)]
    assert len(list(tmp_path.iterdir())) == KEPT


def test_a_small_log_stays(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    assert not rotate(log)
    log.write_bytes(b"x" * 100)
    assert not rotate(log, 100)
    assert log.stat().st_size == 100


def test_a_process_goes_on_writing_to_a_log_in_use(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"before" * 20)
        assert rotate(log, 100, in_use=True)
        writer.write(b"after")
    assert log.read_bytes() == b"after", "without a hole where the old text was"
    assert log.with_name("worker.log.1").read_bytes() == b"before" * 20


def test_a_log_in_use_is_emptied_on_a_full_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_text("a pa")
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    log = tmp_path / "worker.log"
    log.write_text("a part of it fits\n")
    assert rotate(log, in_use=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("worker.log", "")]
