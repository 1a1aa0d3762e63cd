"""What a GGUF file says of itself: its values by key, and the places of its tensors.

    magic, version, number of tensors, number of values
    values    key, type, value
    tensors   name, sizes (the innermost first), type, offset
    data      from the next multiple of the alignment on

The format is described in github.com/ggml-org/ggml, docs/gguf.md. Files are untrusted: every length is
checked against the file before anything of that length is made.
"""

import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ops.model_directory.files import FileError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
"""Alignment of the data where a file names no other."""
MOST_DIMENSIONS = 4
MOST_DEPTH = 4
"""Levels of arrays in each other."""
MOST_FILES = 99_999
"""Files of a split model: their names have five digits for the number."""

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of values, by their number: codes of `struct`."""
_STRING, _ARRAY = 8, 9

TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    30: ("BF16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
"""Types of tensors, by their number: name, weights of a block, bytes of a block."""
PLAIN = ("F32", "F16", "BF16")
"""Types that are not quantized."""
_OTHERS = {9: "Q8_1", 15: "Q8_K", 40: "NVFP4", 41: "Q1_0"}
"""Types that are not read, for messages."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies."""

    path: Path
    kind: str
    """Name of its type, of `TYPES`."""
    shape: tuple[int, ...]
    """Numbers of weights, the outermost dimension first."""
    start: int
    """Its first byte in the file."""
    row_bytes: int
    """Bytes of a row, which is its innermost dimension."""

    @property
    def nbytes(self) -> int:
        return prod(self.shape[:-1]) * self.row_bytes


@dataclass(frozen=True, slots=True)
class Gguf:
    """A file, or all files of a model that is split."""

    path: Path
    """The first file."""
    values: Mapping[str, Any]
    """Values of the first file by key: numbers, texts, flags, and lists of these."""
    tensors: Mapping[str, TensorPlace]

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return sorted({self.path, *(tensor.path for tensor in self.tensors.values())})

    def wrong(self, key: str, what: str) -> FileError:
        """An error that names the file and the key, followed by `what`."""
        return FileError(f"{self.path}: {key}: {what}")

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of a key, or `default`. Raises `FileError` if it is not of type `kind`."""
        value = self.values.get(key)
        if value is None:
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(each.__name__ for each in kinds)
            raise self.wrong(key, f"{names} is needed, not {str(value)[:60]!r}")
        return value


class _Reader:
    """Reads one after the other from the bytes of a file. Raises `FileError` at their end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self._data, self.place = path, data, 0

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self.place:
            raise FileError(f"{self.path}: the file is truncated: it ends within its header")
        self.place += size
        return self._data[self.place - size : self.place]

    def number(self, code: str) -> Any:
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))
        return value

    def text(self) -> str:
        raw = self.take(self.number("Q"))
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY and depth < MOST_DEPTH:
            return self._array(depth)
        if kind not in _NUMBERS:
            raise FileError(f"{self.path}: a value of type {kind} is not understood")
        return self.number(_NUMBERS[kind])

    def _array(self, depth: int) -> list[Any]:
        kind, count = self.number("I"), self.number("Q")
        if code := _NUMBERS.get(kind):
            size = struct.calcsize(f"<{code}")
            return [each for (each,) in struct.iter_unpack(f"<{code}", self.take(count * size))]
        found: list[Any] = []  # grows as it is read, so that a wrong count meets the end of the file
        while len(found) < count:
            found.append(self.value(kind, depth + 1))
        return found


def read_gguf(path: Path) -> Gguf:
    """A file's header; of a model that is split, of all its files. Raises `FileError`."""
    values, tensors = _read_one(path)
    count = values.get("split.count", 1)
    if not isinstance(count, int) or count < 2:
        return Gguf(path, values, tensors)
    every = split_paths(path, count)
    if path != every[0]:
        values, _ = _read_one(every[0])
    tensors = {}
    for each in every:
        tensors |= _read_one(each)[1]
    expected = values.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise FileError(f"{every[0]}: split.tensors.count: {expected}, but its files have {len(tensors)}")
    return Gguf(every[0], values, tensors)


def is_gguf(path: Path) -> bool:
    """Whether a regular file begins as GGUF files do."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def split_paths(path: Path, count: int) -> list[Path]:
    """All files of a split model, one of which is `path`: NAME-00001-of-00003.gguf. Raises `FileError`."""
    if count > MOST_FILES:
        raise FileError(f"{path}: split.count: {count} is more than {MOST_FILES}")
    stem = path.stem.rpartition("-of-")[0].rpartition("-")[0]
    every = [path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    if path not in every:
        raise FileError(f"{path}: split.count: {count}, but the file is not named *-of-{count:05}.gguf")
    if missing := [each for each in every if not each.is_file()]:
        raise FileError(f"{missing[0]} is missing, {path.name} is one of {count} files")
    return every


def _read_one(path: Path) -> tuple[dict[str, Any], dict[str, TensorPlace]]:
    if not path.is_file():  # as a pipe, at which `open` waits
        raise FileError(f"{path} is no file")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(_Reader(path, data), len(data))
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        raise FileError(f"{path} cannot be read: {error}") from error


def _parse(reader: _Reader, size: int) -> tuple[dict[str, Any], dict[str, TensorPlace]]:
    path = reader.path
    if reader.take(len(MAGIC)) != MAGIC:
        raise FileError(f"{path}: not a GGUF file")
    if (version := reader.number("I")) not in VERSIONS:
        raise FileError(f"{path}: GGUF version {version} is not supported (2, 3)")
    tensor_count, value_count = reader.number("Q"), reader.number("Q")
    values: dict[str, Any] = {}
    for _ in range(value_count):
        key = reader.text()
        values[key] = reader.value(reader.number("I"))
    places = [_tensor(reader) for _ in range(tensor_count)]
    alignment = values.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
        raise FileError(f"{path}: general.alignment: {alignment!r} is not a multiple of 8")
    data = -(-reader.place // alignment) * alignment
    tensors: dict[str, TensorPlace] = {}
    for name, kind, shape, offset in places:
        if name in tensors:
            raise FileError(f"{path}: tensor {name} comes twice")
        tensors[name] = place = _place(path, name, kind, shape, data + offset)
        if place.start % alignment:
            raise FileError(f"{path}: tensor {name} does not begin at a multiple of {alignment}")
        if place.start + place.nbytes > size:
            raise FileError(f"{path}: the file is truncated: tensor {name} ends after its last byte")
    return values, tensors


def _tensor(reader: _Reader) -> tuple[str, int, Sequence[int], int]:
    """Name, type, shape with the outermost dimension first, and offset."""
    name, dimensions = reader.text(), reader.number("I")
    if not 0 < dimensions <= MOST_DIMENSIONS:
        raise FileError(f"{reader.path}: tensor {name} has {dimensions} dimensions")
    shape = [reader.number("Q") for _ in range(dimensions)]
    return name, reader.number("I"), shape[::-1], reader.number("Q")


def _place(path: Path, name: str, number: int, shape: Sequence[int], start: int) -> TensorPlace:
    if number not in TYPES:
        known = ", ".join(kind for kind, _, _ in TYPES.values())
        found = _OTHERS.get(number, number)
        raise FileError(f"{path}: tensor {name} is of type {found}, not of one that is read ({known})")
    kind, weights, octets = TYPES[number]
    if min(shape) < 1 or shape[-1] % weights:
        raise FileError(f"{path}: tensor {name} of type {kind} has shape {list(shape)}")
    return TensorPlace(path, kind, tuple(shape), start, shape[-1] // weights * octets)
