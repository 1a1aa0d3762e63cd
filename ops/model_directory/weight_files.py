"""The files of a directory that have the model's weights.

An index names them, and they may have any names; without an index there is one file. Repositories may have
the same weights once more. Mistral's have consolidated.safetensors, in which tensors have other names: this
form and its configuration, params.json, are not read.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from ops.model_directory.files import FileError, read_json

SINGLE = "model.safetensors"
"""The file without an index."""
INDEX = "model.safetensors.index.json"
CONSOLIDATED = "consolidated*.safetensors"
MADE_OF = "made_of"
"""Key of the config.json that is made of a model's file, with the kind of the file."""
GGUF = "gguf"
_SUFFIX = ".safetensors"
_MOST_BYTES = 255  # of a file's name


def weight_map(directory: Path) -> dict[str, str] | None:
    """The index: for each tensor the name of its file. None: there is no index. Raises `FileError`."""
    path = directory / INDEX
    if not path.is_file():
        return None
    found = read_json(path, pairs=_once).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise FileError(f"{path}: weight_map: an object that is not empty is needed")
    named = {tensor: str(file) for tensor, file in found.items()}
    if others := [name for name in named.values() if not _lies_beside(name)]:
        raise FileError(f"{path}: {min(others)[:80]!r} is not a file of safetensors beside it")
    return named


def named_files(directory: Path) -> list[str]:
    """Names of the files that are read, whether they are there or not, in order. Raises `FileError`."""
    named = weight_map(directory)
    return [SINGLE] if named is None else sorted({*named.values()})


def weight_files(directory: Path) -> list[Path]:
    """The files that are read and are there, in the order of their names. Raises `FileError`."""
    return [path for name in named_files(directory) if (path := directory / name).is_file()]


def gguf_files(directory: Path) -> list[Path]:
    """The GGUF files with the weights, in the order of their names; empty: safetensors have them.

    Raises `FileError` if config.json is not made of them. llama.cpp orders rows and scales weights in ways of
    its own, so that a model's other config.json means another model.
    """
    found = [] if weight_files(directory) else sorted(directory.glob(f"*.{GGUF}"))
    if found and read_json(directory / "config.json").get(MADE_OF) != GGUF:
        what = f"config.json is not of {found[0].name}, and {SINGLE} is not there"
        raise FileError(
            f"{directory}: {what}, or it was made by an earlier version: name the .gguf file itself"
        )
    return found


_OF_TRAINING = ("training_args", "optimizer", "scheduler", "rng_state")
"""Beginnings of the names of pickles that are no weights."""


def only_pickles(directory: Path) -> str | None:
    """What is wrong with a directory without files of safetensors, if it has pickles in their place.

    Reading a pickle may run any code.
    """
    kinds = ("*.bin", "*.pt", "*.pth")
    names = [path.name for kind in kinds for path in sorted(directory.glob(kind))]
    found = [name for name in names if not name.startswith(_OF_TRAINING)]
    if not found:
        return None
    return f"weights only as pickles ({found[0]}), which are never loaded: save them as safetensors"


def check_form(directory: Path, weights: bool) -> None:
    """Raise `FileError` if the model is there in Mistral's form alone, or as a GGUF file beside another's
    config.json. `weights`: whether they count, too."""
    there = not weights or weight_files(directory) or gguf_files(directory)
    alone = [] if there else sorted(directory.glob(CONSOLIDATED))
    if not (directory / "config.json").is_file():
        alone += [path for path in (directory / "params.json",) if path.is_file()]
    if alone:
        what = f"config.json and {SINGLE} are needed"
        raise FileError(f"{directory}: Mistral's own form of a model ({alone[0].name}) is not read: {what}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises `ValueError` if a name comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"{next(name for name, count in counts.items() if count > 1)} comes twice")
    return found


def _lies_beside(name: str) -> bool:
    plain = Path(name).name == name and name.isprintable()
    return plain and name.endswith(_SUFFIX) and len(name.encode()) <= _MOST_BYTES
