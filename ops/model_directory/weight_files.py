"""The files of a directory that have the model's weights.

An index names them, and they may have any names; without an index there is one file. Repositories may have
the same weights once more. Mistral's have consolidated.safetensors, in which tensors have other names: this
form and its configuration, params.json, are not read.
"""

import re
from pathlib import Path

from ops.model_directory.files import FileError, read_json

SINGLE = "model.safetensors"
"""The file without an index."""
INDEX = "model.safetensors.index.json"
CONSOLIDATED = "consolidated*.safetensors"
_NAME = re.compile(r"[\w.-]+\.safetensors", re.ASCII)


def named_files(directory: Path) -> list[str]:
    """Names of the files that are read, whether they are there or not, in order. Raises `FileError`."""
    path = directory / INDEX
    if not path.is_file():
        return [SINGLE]
    named = read_json(path).get("weight_map")
    if not isinstance(named, dict):
        raise FileError(f"{path}: weight_map: an object is needed")
    names = {str(file) for file in named.values()}
    if others := [name for name in names if not _NAME.fullmatch(name)]:
        raise FileError(f"{path}: {min(others)[:80]!r} is not a file of safetensors beside it")
    return sorted(names)


def weight_files(directory: Path) -> list[Path]:
    """All safetensors that are there in the form that is read, in the order of their names."""
    return sorted({*directory.glob("*.safetensors")} - {*directory.glob(CONSOLIDATED)})


def check_form(directory: Path, weights: bool) -> None:
    """Raise `FileError` if the model is there in Mistral's form alone. `weights`: whether they count, too."""
    there = not weights or weight_files(directory) or any(directory.glob("*.gguf"))
    alone = [] if there else sorted(directory.glob(CONSOLIDATED))
    if not (directory / "config.json").is_file():
        alone += [path for path in (directory / "params.json",) if path.is_file()]
    if alone:
        what = f"config.json and {SINGLE} are needed"
        raise FileError(f"{directory}: Mistral's own form of a model ({alone[0].name}) is not read: {what}")
