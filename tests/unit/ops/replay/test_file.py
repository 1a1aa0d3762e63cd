"""Files that may be anything."""

import gzip
from pathlib import Path

import pytest

from ops.replay import file
from ops.replay.file import read
from ops.runtime.errors import UsageError
from proto.recording_pb2 import Recording


def test_a_recording_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one.quire"
    path.write_bytes(gzip.compress(Recording(reason="because").SerializeToString()))
    assert read(path).reason == "because"


@pytest.mark.parametrize("data", [b"", b"text", gzip.compress(b"\xff\xff"), gzip.compress(b"x" * 99)[:20]])
def test_anything_else_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "one.quire"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"one\.quire"):
        read(path)


def test_what_is_not_there_or_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "none")
    monkeypatch.setattr(file, "MOST_BYTES", 99)
    (tmp_path / "bomb").write_bytes(gzip.compress(b"\0" * 100))
    with pytest.raises(UsageError, match="too large"):
        read(tmp_path / "bomb")
