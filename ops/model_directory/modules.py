"""The modules of a model directory of sentence-transformers: what follows the model itself.

modules.json lists them: the model, and for example its pooling, with a folder for the configuration of each.
"""

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ops.model_directory.files import FileError, read_text

FILE = "modules.json"


@dataclass(frozen=True, slots=True)
class Module:
    """A module of a model."""

    kind: str
    """Name of its class, such as Pooling."""
    path: str
    """Its folder within the model directory; empty: the directory itself."""


def modules_in(directory: Path) -> tuple[Module, ...]:
    """The modules of a model, in order; none for a directory that does not name them. Raises `FileError`."""
    path = directory / FILE
    if not path.is_file():
        return ()
    try:
        listed = json.loads(read_text(path))
    except (RecursionError, ValueError) as error:
        raise FileError(f"{path} is not JSON: {str(error)[:200]}") from None
    if not isinstance(listed, list):
        raise FileError(f"{path} is not a list")
    return tuple(_module(path, each) for each in listed)


def pools(directory: Path) -> bool:
    """Whether the modules of a model make an embedding of a text. Raises `FileError`."""
    return any(module.kind == "Pooling" for module in modules_in(directory))


def _module(path: Path, listed: object) -> Module:
    match listed:
        case {"type": str(kind), "path": str(folder)} if _is_within(folder):
            return Module(kind.rpartition(".")[2][:80], folder)
    raise FileError(f"{path}: a module needs a type, and a path within the directory")


def _is_within(folder: str) -> bool:
    path = PurePosixPath(folder)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in folder
