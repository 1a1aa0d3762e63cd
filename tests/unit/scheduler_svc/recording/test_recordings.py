"""The directory of recordings."""

import gzip
import os
import socket
import stat
from pathlib import Path

import pytest

from proto.recording_pb2 import Recording
from scheduler_svc.recording.recordings import KEPT, Recordings, files_of


def test_a_file_is_its_owner_s_alone_and_whole(tmp_path: Path) -> None:
    directory = tmp_path / "some" / "where"
    path = Recordings(directory, "fox").save(Recording(reason="because"))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = Recording.FromString(gzip.decompress(path.read_bytes()))
    assert found.reason == "because"
    assert found.ended > 1.7e9
    assert path.name.startswith("fox-2")
    assert path.name.endswith(f"-{socket.gethostname()}-{os.getpid()}-000001.quire")
    assert list(directory.iterdir()) == files_of(directory, os.getpid()) == [path]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    recordings = Recordings(tmp_path, "fox")
    before = [tmp_path / f"fox-20200101T000000-host-1-{number:06}.quire" for number in range(KEPT + 1)]
    for path in before:
        path.touch()
    paths = [recordings.save(Recording()) for _ in range(KEPT + 2)]
    assert set(tmp_path.iterdir()) == {*paths[2:], *before[1:], other}


def test_schedulers_of_several_models_and_hosts_keep_each_other_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = "fox", "fox-2", "north/fox \u5929" + "x" * 200
    fox, fox2, north = (Recordings(tmp_path, model) for model in models)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    elsewhere = Recordings(tmp_path, "fox-2")  # with the same number of its process
    kept = [each.save(Recording(), workers=12) for each in (fox, fox2, north, elsewhere) for _ in range(12)]
    assert len(set(kept)) == 48
    assert set(tmp_path.iterdir()) == set(kept)
    alone = [fox2.save(Recording()) for _ in range(KEPT)]
    assert set(tmp_path.iterdir()) == {*kept[:12], *kept[24:36], *alone, *kept[36 + 4 :]}


def test_each_worker_s_is_kept(tmp_path: Path) -> None:
    recordings = Recordings(tmp_path, "fox")
    paths = [recordings.save(Recording(), workers=KEPT + 4) for _ in range(2 * (KEPT + 4))]
    assert set(tmp_path.glob("*.quire")) == set(paths[KEPT + 4 :])


def test_the_newest_are_kept_when_the_clock_was_set_back(tmp_path: Path) -> None:
    for number in range(KEPT):
        (tmp_path / f"fox-20990101T000000-host-1-{number:06}.quire").touch()
    recordings = Recordings(tmp_path, "fox")
    paths = [recordings.save(Recording()) for _ in range(3)]
    assert set(paths) <= set(tmp_path.glob("*.quire"))


def test_nothing_is_left_of_what_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="full"):
        Recordings(tmp_path, "fox").save(Recording())
    assert list(tmp_path.iterdir()) == []
