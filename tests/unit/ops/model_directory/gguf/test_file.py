"""Headers of GGUF files, also of wrong ones: each error is one line that names the file."""

import os
from pathlib import Path
from typing import Any

import pytest

from ops.model_directory.files import FileError
from ops.model_directory.gguf.file import TYPES, read_gguf
from tests.support.gguf import BYTES, KINDS, write_gguf

VALUES = {
    "general.architecture": "llama",
    "general.alignment": 64,
    "flag": True,
    "share": 0.5,
    "texts": ["fox", "owl 🦉"],
    "numbers": [3, 1, 2],
    "empty": [],
}
TENSORS = {"a.weight": (0, (2, 3), bytes(range(24))), "b.weight": (8, (1, 32), bytes(34))}


def test_values_and_places(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", VALUES, TENSORS, alignment=64)
    found = read_gguf(path)
    assert found.values == VALUES
    first, second = found.tensors.values()
    assert (first.kind, first.shape, first.row_bytes, first.nbytes) == ("F32", (2, 3), 12, 24)
    assert (second.kind, second.shape, second.nbytes) == ("Q8_0", (1, 32), 34)
    assert path.read_bytes()[first.start : first.start + 24] == bytes(range(24))
    assert second.start == first.start + 64


def test_types_have_their_sizes() -> None:
    ours = {kind: (number, weights, octets) for number, (kind, weights, octets) in TYPES.items()}
    assert {kind: ours[kind] for kind in KINDS} == {
        kind: (number, weights, BYTES[kind]) for kind, (number, weights, *_) in KINDS.items()
    }


def test_a_file_that_ends_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", VALUES, TENSORS, alignment=64).read_bytes()
    path = tmp_path / "tiny.gguf"
    padding = 64 - 34
    for size in range(0, len(whole) - padding, 7):
        path.write_bytes(whole[:size])
        with pytest.raises(FileError) as error:
            read_gguf(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "tensors", "message"),
    [
        (
            {},
            {"a": (40, (1, 64), bytes(36))},
            r"tensor a is of type NVFP4, not of one that is read \(F32, ",
        ),
        ({}, {"a": (77, (1, 1), b"")}, "tensor a is of type 77"),
        ({}, {"a": (12, (1, 100), bytes(144))}, r"tensor a of type Q4_K has shape \[1, 100\]"),
        ({}, {"a": (0, (1, 1, 1, 1, 1), bytes(4))}, "tensor a has 5 dimensions"),
        ({"general.alignment": 7}, {}, "general.alignment: 7 is not a multiple of 8"),
        ({"split.count": 3}, {}, "split.count: 3, but the file is not named"),
        ({"split.count": 2**31 - 1}, {}, "split.count: 2147483647 is more than 99999"),
    ],
)
def test_wrong_files(tmp_path: Path, values: Any, tensors: Any, message: str) -> None:
    path = write_gguf(tmp_path / "wrong.gguf", values, tensors)
    with pytest.raises(FileError, match=message) as error:
        read_gguf(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"PK" + bytes(30), "not a GGUF file"),
        (b"GGUF" + b"\1\0\0\0" + bytes(30), "GGUF version 1 is not supported"),
        (
            b"GGUF" + b"\3\0\0\0" + bytes(8) + b"\xff" * 8 + bytes(30),
            "a value of type 0|truncated|not understood",
        ),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(FileError, match=message):
        read_gguf(path)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(FileError, match="is no file"):
        read_gguf(tmp_path / "pipe.gguf")


def test_a_value_of_another_type(tmp_path: Path) -> None:
    found = read_gguf(write_gguf(tmp_path / "tiny.gguf", VALUES, TENSORS, alignment=64))
    assert found.get("share", float) == 0.5
    assert found.get("other", int, 7) == 7
    for key, kind in (("share", int), ("flag", int), ("texts", str)):
        with pytest.raises(FileError, match=f"{key}: {kind.__name__} is needed"):
            found.get(key, kind)


def test_a_part_is_missing(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a-00001-of-00002.gguf", {"split.count": 2}, TENSORS)
    with pytest.raises(FileError, match=r"a-00002-of-00002\.gguf is missing"):
        read_gguf(path)
    write_gguf(tmp_path / "a-00002-of-00002.gguf", {"split.count": 2}, {"c": TENSORS["a.weight"]})
    assert list(read_gguf(path).tensors) == ["a.weight", "b.weight", "c"]
    write_gguf(path, {"split.count": 2, "split.tensors.count": 9}, TENSORS)
    with pytest.raises(FileError, match=r"split\.tensors\.count: 9, but its files have 3"):
        read_gguf(path)
