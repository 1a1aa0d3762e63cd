"""The small files of a model directory, which anybody may have made: read with bounds, and checked."""

import json
import re
import stat
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

MOST_BYTES = 2**26
"""Size of a configuration file. A long one has some kilobytes."""
MOST_DEPTH = 64
"""Levels of objects and lists in each other. Real files have fewer than ten."""
MOST_LAYERS = 4096
MOST_SIZE = 2**31 - 1
"""The largest number of anything else: token ids, dimensions, positions and heads are int32."""

MODELOPT = "hf_quant_config.json"
"""What older versions of Model Optimizer wrote instead of `quantization_config` in config.json."""

_LAYERS = re.compile(r"(^|_)(layers?|n_layers?)$")
_SIZE = re.compile(
    r"(^|_)(size|dim|rank|heads?|groups?|experts|positions|embeddings|embd|model|window)$|_per_tok$"
)


_POINTER = b"version https://git-lfs"


class FileError(Exception):
    """A file cannot be used. The message is one line with its path, and the key at fault if it is one."""


def not_there(path: Path) -> str:
    """Why a file of a model is not there as a whole; empty if its first bytes can be those of such a file.

    A repository that was cloned without Git LFS has pointers in place of large files.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # at a pipe `open` waits
            return "no file"
        with path.open("rb") as file:
            begins = file.read(len(_POINTER))
    except OSError as error:
        return error.strerror or f"{error}"
    return "a pointer of Git LFS, not the file: `git lfs pull` fetches it" if begins == _POINTER else ""


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """What is in a file. Raises `FileError`, without reading, if that is too much."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a link to a device could be read for ever
            raise FileError(f"{path} is no file")
        if found.st_size > most_bytes:
            raise FileError(f"{path}: {found.st_size} bytes are too many, {most_bytes} at most")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    if text.startswith(_POINTER.decode()):
        raise FileError(f"{path}: {not_there(path)}")
    return text


def read_json(
    path: Path,
    most_bytes: int = MOST_BYTES,
    pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The object in a file. `pairs`: `object_pairs_hook` of `json.loads`. Raises `FileError`."""
    try:
        value = json.loads(read_text(path, most_bytes), object_pairs_hook=pairs)
    except RecursionError:
        raise FileError(f"{path}: lists and objects are nested too deeply") from None
    except ValueError as error:
        raise FileError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FileError(f"{path} is not a JSON object")
    return value


def read_config(path: Path) -> dict[str, Any]:
    """A config.json whose sizes are no greater than those of any model. Raises `FileError`."""
    config = read_json(path)
    left: list[tuple[str, Any, int]] = [("", config, 0)]
    while left:
        name, value, depth = left.pop()
        if depth > MOST_DEPTH:
            raise FileError(f"{path}: {name.split('.')[0]}: nested more than {MOST_DEPTH} deep")
        if isinstance(value, Mapping):
            left += [(f"{name}.{key}" if name else str(key), each, depth + 1) for key, each in value.items()]
        elif isinstance(value, list):
            left += [(name, each, depth + 1) for each in value]
        elif isinstance(value, int | float) and not value <= (most := _most(name.rpartition(".")[2])):
            raise FileError(f"{path}: {name}: {str(value)[:40]} is more than {most:.0f}")
    return config


def _most(key: str) -> float:
    """The largest value of a key."""
    if _LAYERS.search(key):
        return MOST_LAYERS
    return MOST_SIZE if _SIZE.search(key) else inf
