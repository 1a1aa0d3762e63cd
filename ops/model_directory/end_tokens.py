"""The tokens that end an answer, which a worker's grammars and the tokenizer service must agree on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ops.model_directory.files import FileError, read_json
from ops.model_directory.tokenizer_content import token_config, tokenizer_content


def end_tokens_in(directory: Path) -> list[int]:
    """The end tokens of the first of generation_config.json and config.json that names any, and the
    tokenizer's own.

    Models tuned for chats often have the first file of the model that they were made of, whose texts end with
    another token. Raises `FileError`.
    """
    paths = (directory / name for name in ("generation_config.json", "config.json"))
    contents = [read_json(path) if path.is_file() else {} for path in paths]
    inner = [content.get("text_config") for content in contents]
    parts = (*contents, *(part for part in inner if isinstance(part, dict)))
    found = next((ids for part in parts if (ids := _listed(directory, part))), [])
    end = _named(directory)
    return found if end is None or end in found else [*found, end]


def _listed(directory: Path, part: Mapping[str, Any]) -> list[int]:
    value = part.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(token) is int and token >= 0 for token in ids):
        raise FileError(f"{directory}: eos_token_id: {value!r} is not a token id or a list of them")
    return ids


def _named(directory: Path) -> int | None:
    """The id of the end token that the files of the tokenizer name; None if they name none."""
    named = token_config(directory).get("eos_token")
    text = named.get("content") if isinstance(named, dict) else named
    if not isinstance(text, str) or not (path := directory / "tokenizer.json").is_file():
        return None
    try:
        _, content = tokenizer_content(directory)
    except ValueError as error:
        raise FileError(f"{path} is not JSON: {error}") from error
    for one in content.get("added_tokens") or ():
        if one["content"] == text:
            return int(one["id"])
    return _in_vocabulary(content, text)


def _in_vocabulary(content: Mapping[str, Any], text: str) -> int | None:
    """The id of a token that is not an added one."""
    vocabulary = (content.get("model") or {}).get("vocab")
    if isinstance(vocabulary, list):  # pieces with their scores
        return next((number for number, (piece, *_) in enumerate(vocabulary) if piece == text), None)
    found = vocabulary.get(text) if isinstance(vocabulary, dict) else None
    return found if type(found) is int else None
