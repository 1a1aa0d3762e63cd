"""A GGUF file as a model directory: its configuration and tokenizer as files, its weights as links.

All services read a model from a directory, and a GGUF file becomes one in the user's cache:

    config.json, generation_config.json, tokenizer.json, tokenizer_config.json    made from the file's values
    *.gguf                                                                        links to the file itself

It takes seconds with a large vocabulary, and is done once: the folder's name has the file's size and time of
change in it. Processes that start side by side each make it, and the first one's stays.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from ops.runtime.gguf.config import config_of, generation_of, read_factors
from ops.runtime.gguf.file import read_gguf
from ops.runtime.gguf.tokenizer import tokenizer_config_of, tokenizer_of
from ops.runtime.model_files import FileError

SUFFIX = ".gguf"
VERSION = 1
"""Raised when a directory is made in another way than before."""

_PART = re.compile(r"-(\d{5})-of-\d{5}$")


def gguf_of(model: Path) -> Path | None:
    """The first GGUF file of a model: of a path to one, or to a directory with one and no other model.

    Raises `FileError` if a directory has several models.
    """
    if model.suffix == SUFFIX and model.is_file():
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


def as_directory(file: Path) -> Path:
    """The model directory of a GGUF file, which is made if it is not there yet. Raises `FileError`."""
    gguf = read_gguf(file.absolute())
    marks = [f"{path} {(stat := path.stat()).st_size} {stat.st_mtime_ns}" for path in gguf.paths]
    key = hashlib.blake2b("\n".join([str(VERSION), *marks]).encode(), digest_size=8).hexdigest()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire" / "gguf"
    directory = base / key / gguf_name(gguf.path)
    if directory.is_dir():
        return directory
    contents = {
        "config.json": config_of(gguf, read_factors(gguf)),
        "generation_config.json": generation_of(gguf),
        "tokenizer.json": tokenizer_of(gguf),
        "tokenizer_config.json": tokenizer_config_of(gguf),
    }
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=directory.parent))
        try:
            for name, content in contents.items():
                (made / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
            for path in gguf.paths:
                (made / path.name).symlink_to(path)
            made.chmod(0o755)
            made.rename(directory)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        if not directory.is_dir():  # another process was first
            raise FileError(f"{file}: its configuration cannot be kept: {error}") from error
    return directory
