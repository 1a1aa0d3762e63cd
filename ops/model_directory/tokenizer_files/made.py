"""A directory without a tokenizer.json becomes one with it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ops.model_directory.made_directory import made_directory
from ops.model_directory.tokenizer_files.merges import MERGES, VOCABULARY, of_merges
from ops.model_directory.tokenizer_files.sentence_pieces import MODEL, of_pieces
from ops.model_directory.tokenizer_files.tekken import TEKKEN, of_tekken
from ops.model_directory.tokenizer_files.tiktoken_ranks import RANKS, of_ranks

KIND = "tokenizer 2"
"""The number is raised when a directory is made in another way than before."""
_SOURCES: tuple[tuple[tuple[str, ...], Callable[[Path], dict[str, Any]]], ...] = (
    ((TEKKEN,), of_tekken),
    ((RANKS,), of_ranks),
    ((VOCABULARY, MERGES), of_merges),
    ((MODEL,), of_pieces),
)
"""Files that a directory may have instead, and what makes of them the contents of others, by their names."""
FILES = tuple(file for files, _ in _SOURCES for file in files)


def with_tokenizer(directory: Path, name: str) -> Path:
    """The directory, or one of this name with the same files and a tokenizer.json if it has others instead.

    Raises `FileError`.
    """
    if (directory / "tokenizer.json").is_file():
        return directory
    for files, made_of in _SOURCES:
        if all((directory / file).is_file() for file in files):
            # Hidden ones, as .git, are no part of a model, and change without it.
            paths = (path for path in directory.iterdir() if not path.name.startswith("."))
            links = {path.name: path.absolute() for path in paths if path.exists()}
            return made_directory(directory, KIND, name, links, partial(made_of, directory))
    return directory
