"""A GGUF file as a model directory: its configuration and tokenizer as files, its weights as links.

    config.json, generation_config.json, 1_Pooling/config.json,    made from the file's values
    tokenizer.json, tokenizer_config.json
    *.gguf                                                         links to the file itself

It takes seconds with a large vocabulary, and is done once: see `made_directory.py`.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ops.model_directory.files import FileError
from ops.model_directory.gguf.config import config_of, generation_of, pooling_of, read_factors
from ops.model_directory.gguf.file import is_gguf, read_gguf
from ops.model_directory.gguf.tokenizer import tokenizer_config_of, tokenizer_of
from ops.model_directory.made_directory import made_directory

SUFFIX = ".gguf"
KIND = "gguf 5"
"""The number is raised when a directory is made in another way than before."""

_PART = re.compile(r"-(\d{5})-of-\d{5}$")


def gguf_of(model: Path) -> Path | None:
    """The first GGUF file of a model: of a path to one, or to a directory with one and no other model.

    A file may have any name, as the blobs of Ollama. Raises `FileError` if a directory has several models.
    """
    if model.is_file() and (model.suffix == SUFFIX or is_gguf(model)):
        return model
    if not model.is_dir() or (model / "config.json").exists():
        return None
    files = sorted(model.glob(f"*{SUFFIX}"))
    names = sorted({gguf_name(path) for path in files})
    if len(names) > 1:
        raise FileError(f"{model} has {len(names)} models ({names[0]}, {names[1]}): name one of its files")
    return files[0] if files else None


def gguf_name(path: Path) -> str:
    """The name of a model: its file's, without the number of a split file."""
    return _PART.sub("", path.stem)


def as_directory(file: Path, say: Callable[[str], object] = lambda line: None) -> Path:
    """The model directory of a GGUF file, which is made if it is not there yet. Raises `FileError`.

    `say`: is told when it is made, which takes seconds.
    """
    gguf = read_gguf(file.absolute())

    def contents() -> dict[str, Any]:
        say(f"read    configuration and tokenizer of {file}, once")
        return {
            "config.json": config_of(gguf, read_factors(gguf)),
            "generation_config.json": generation_of(gguf),
            "1_Pooling/config.json": pooling_of(gguf),
            "tokenizer.json": tokenizer_of(gguf),
            "tokenizer_config.json": tokenizer_config_of(gguf),
        }

    links = {f"{path.name.removesuffix(SUFFIX)}{SUFFIX}": path for path in gguf.paths}
    return made_directory(file, KIND, gguf_name(gguf.path), links, contents)
