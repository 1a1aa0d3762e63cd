"""Kimi K2 and Moonlight, which have tiktoken's ranks.

    tiktoken.model           a token in each line, its bytes in base64, and its rank, which is its id
    tokenizer_config.json    the special tokens, whose ids come after those

How text is split is written in the model's Python file, which is never run: it is known by the class that the
configuration names.
"""

from pathlib import Path
from typing import Any

from ops.model_directory.files import FileError, read_json, read_text
from ops.model_directory.gguf.splits import SPLITS
from ops.model_directory.tokenizer_files.ranks import Ranks
from ops.model_directory.tokenizer_json import added_token, byte_level, tokenizer_json

RANKS = "tiktoken.model"
CLASSES = {"TikTokenTokenizer": SPLITS["kimi-k2"]}
"""How text is split, by the configuration's `tokenizer_class`."""
MOST_BYTES = 2**27
"""Size of the file. Kimi K2's has 3 MB."""
MOST_SPECIAL = 4096
"""Special tokens. Kimi K2 has 258."""


def of_ranks(directory: Path) -> dict[str, Any]:
    """The files that are made: tokenizer.json. Raises `FileError`."""
    path = directory / "tokenizer_config.json"
    config = read_json(path)
    split = CLASSES.get(str(config.get("tokenizer_class")))
    if split is None:
        kind, known = config.get("tokenizer_class"), ", ".join(CLASSES)
        raise FileError(f"{path}: tokenizer_class: {kind!r} with {RANKS} is not supported ({known})")
    ranks = _ranks(directory / RANKS)
    added = _special(path, config.get("added_tokens_decoder"), len(ranks.tokens))
    model = byte_level(split, ranks.tokens, ranks.merges(), whole=True)
    return {"tokenizer.json": tokenizer_json(added, model)}


def _ranks(path: Path) -> Ranks:
    ranks = Ranks()
    for number, line in enumerate(read_text(path, MOST_BYTES).splitlines()):
        try:
            token, rank = line.split()
            ranks.add(token, int(rank))
        except ValueError as error:
            raise FileError(f"{path}: line {number + 1}: {error}") from error
    try:
        ranks.check()
    except ValueError as error:
        raise FileError(f"{path}: {error}") from error
    return ranks


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
    return [
        added_token(number, *known.get(number, (f"<|reserved_token_{number}|>", True)))
        for number in range(first, max(known, default=first - 1) + 1)
    ]
