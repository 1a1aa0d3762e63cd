"""The directory of recordings."""

import gzip
import os
import stat
from pathlib import Path

import pytest

from proto.recording_pb2 import Recording
from scheduler_svc.recording.recordings import KEPT, Recordings


def test_a_file_is_its_owner_s_alone_and_whole(tmp_path: Path) -> None:
    directory = tmp_path / "some" / "where"
    path = Recordings(directory).save(Recording(reason="because"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = Recording.FromString(gzip.decompress(path.read_bytes()))
    assert found.reason == "because"
    assert found.ended > 1.7e9
    assert f"-{os.getpid()}-000001.quire" in path.name
    assert list(directory.iterdir()) == [path]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    recordings = Recordings(tmp_path)
    (tmp_path / "20200101T000000-1-000001.quire").touch()
    paths = [recordings.save(Recording()) for _ in range(KEPT + 2)]
    left = set(tmp_path.glob("*.quire"))
    assert len(left) == KEPT
    assert paths[-1] in left
    assert other.exists()
    assert not (tmp_path / "20200101T000000-1-000001.quire").exists()


def test_each_worker_s_is_kept(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path)
    paths = [recordings.save(Recording(), workers=KEPT + 4) for _ in range(2 * (KEPT + 4))]
    assert set(tmp_path.glob("*.quire")) == set(paths[KEPT + 4 :])


def test_the_newest_are_kept_when_the_clock_was_set_back(tmp_path: Path) -> None:
    for number in range(KEPT):
        (tmp_path / f"20990101T000000-1-{number:06}.quire").touch()
    recordings = Recordings(tmp_path)
    paths = [recordings.save(Recording()) for _ in range(3)]
    left = sorted(tmp_path.glob("*.quire"))
    assert len(left) == KEPT
    assert set(paths) <= set(left)


def test_nothing_is_left_of_what_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="full"):
        Recordings(tmp_path).save(Recording())
    assert list(tmp_path.iterdir()) == []
