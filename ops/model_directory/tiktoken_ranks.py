"""tokenizer.json of a model that has tiktoken's ranks instead: Kimi K2 and Moonlight.

    tiktoken.model           a token in each line, its bytes in base64, and its rank, which is its id
    tokenizer_config.json    the special tokens, whose ids come after those

tiktoken merges the two neighbours whose bytes together have the lowest rank, again and again. So every pair
of tokens that make a token is a merge, that of the lowest rank first. How text is split before is written in
the model's Python file, which is never run: it is known by the class that the configuration names.
"""

from base64 import b64decode
from pathlib import Path
from typing import Any

from ops.model_directory.byte_alphabet import CHARACTERS
from ops.model_directory.files import FileError, read_json, read_text
from ops.model_directory.gguf.tokenizer import byte_level, merges_of
from ops.model_directory.made_directory import made_directory

RANKS = "tiktoken.model"
CLASSES = {"TikTokenTokenizer": "kimi-k2"}
"""How text is split, by the configuration's `tokenizer_class`: a name in `SPLITS`."""
KIND = "tiktoken 1"
"""The number is raised when a directory is made in another way than before."""
MOST_BYTES = 2**27
"""Size of the file. Kimi K2's has 3 MB."""
MOST_TOKEN = 1024
"""Bytes of a token. Those of real models have some hundred at most."""
MOST_SPECIAL = 4096
"""Special tokens. Kimi K2 has 258."""


def has_ranks(directory: Path) -> bool:
    """Whether the directory has ranks in place of a tokenizer.json."""
    return (directory / RANKS).is_file() and not (directory / "tokenizer.json").is_file()


def with_tokenizer(directory: Path) -> Path:
    """A directory with the same files and a tokenizer.json. Raises `FileError`."""
    links = [path.absolute() for path in directory.iterdir() if path.exists()]
    return made_directory(
        directory, KIND, directory.name, links, lambda: {"tokenizer.json": tokenizer_of(directory)}
    )


def tokenizer_of(directory: Path) -> dict[str, Any]:
    """tokenizer.json. Raises `FileError`."""
    path = directory / "tokenizer_config.json"
    config = read_json(path)
    name = CLASSES.get(str(config.get("tokenizer_class")))
    if name is None:
        kind, known = config.get("tokenizer_class"), ", ".join(CLASSES)
        raise FileError(f"{path}: tokenizer_class: {kind!r} with {RANKS} is not supported ({known})")
    vocabulary = _vocabulary(directory / RANKS)
    merges = merges_of(vocabulary, [-float(rank) for rank in range(len(vocabulary))])
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _special(path, config.get("added_tokens_decoder"), len(vocabulary)),
        **byte_level(name, vocabulary, merges, whole=True),
        "post_processor": None,
    }


def _vocabulary(path: Path) -> dict[str, int]:
    """Tokens, in the alphabet of bytes, and their ranks, in order."""
    found: dict[str, int] = {}
    for number, line in enumerate(read_text(path, MOST_BYTES).splitlines()):
        try:
            token, rank = line.split()
            content = b64decode(token, validate=True)
            if len(content) > MOST_TOKEN:
                raise ValueError(f"{len(content)} bytes are too many for a token")
            if int(rank) != number:
                raise ValueError(f"the rank is {rank[:20]}, not {number}")
        except ValueError as error:
            raise FileError(f"{path}: line {number + 1}: {error}") from error
        found["".join(CHARACTERS[byte] for byte in content)] = number
        if len(found) != number + 1 or not content:
            raise FileError(f"{path}: line {number + 1}: the token is empty, or was there before")
    if missing := [byte for byte, character in CHARACTERS.items() if character not in found]:
        raise FileError(f"{path}: no token is the byte {min(missing)} alone")
    return found


def _special(path: Path, named: Any, first: int) -> list[dict[str, Any]]:
    """The tokens from `first` on. Those between named ones are reserved, so that ids have no gaps."""
    try:
        known = {
            int(number): (str(each["content"]), bool(each.get("special", True)))
            for number, each in named.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path}: added_tokens_decoder: not tokens by their ids") from error
    if known and not (first <= min(known) and max(known) < first + MOST_SPECIAL):
        expected = f"ids from {first} to {first + MOST_SPECIAL - 1} are expected"
        raise FileError(f"{path}: added_tokens_decoder: {expected}")
    found = []
    for number in range(first, max(known, default=first - 1) + 1):
        content, special = known.get(number, (f"<|reserved_token_{number}|>", True))
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        found.append({"id": number, "content": content, **plain, "special": special})
    return found
