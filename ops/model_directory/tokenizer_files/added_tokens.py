"""Tokens that are found in a text before it is split: which they are, by the files beside a vocabulary.

tokenizer_config.json, special_tokens_map.json    special tokens by their names, as `bos_token`
added_tokens.json                                 ids of tokens by their texts
tokenizer_config.json: added_tokens_decoder       tokens by their ids, in newer directories
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ops.model_directory.files import MOST_SIZE, FileError, read_json
from ops.model_directory.tokenizer_json import Token, added_token

CONFIG = "tokenizer_config.json"
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def config_of(directory: Path, defaults: Mapping[str, Mapping[str, str]]) -> tuple[str, dict[str, Any]]:
    """The name of the tokenizer's class, and the configuration with the class's own values.

    `defaults`: those, by the names of the known classes. Raises `FileError` for other classes.
    """
    path = directory / CONFIG
    own = read_json(path) if path.is_file() else {}
    name = str(own.get("tokenizer_class")).removesuffix("Fast")
    if name not in defaults:
        given, known = own.get("tokenizer_class"), ", ".join(defaults)
        raise FileError(
            f"{path}: tokenizer_class: {given!r} without tokenizer.json is not supported ({known})"
        )
    older = directory / "special_tokens_map.json"
    return name, {**defaults[name], **(read_json(older) if older.is_file() else {}), **own}


def added_tokens(
    directory: Path, config: Mapping[str, Any], vocabulary: dict[str, int]
) -> list[dict[str, Any]]:
    """The tokens as tokenizer.json has them; those that the vocabulary lacks become part of it.

    Raises `FileError`.
    """
    path = directory / "added_tokens.json"
    try:
        named = {one["content"]: one for one in named_tokens(config)}
        ids = {**vocabulary, **(read_json(path) if path.is_file() else {})}
        found = {text: added_token(ids[text], **one) for text, one in named.items() if text in ids}
        found |= {
            text: added_token(number, text, special=False)
            for text, number in ids.items()
            if text not in vocabulary and text not in found
        }
        for number, one in (config.get("added_tokens_decoder") or {}).items():
            special = one.get("special") is True or one["content"] in named
            found[one["content"]] = added_token(int(number), **one | {"special": special})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FileError(f"{directory / CONFIG}: not tokens with their texts and ids: {error}") from error
    _add(directory, [(one["id"], one["content"]) for one in found.values()], vocabulary)
    return sorted(found.values(), key=lambda one: int(one["id"]))


def named_token(config: Mapping[str, Any], name: str, vocabulary: Mapping[str, int]) -> Token | None:
    """The token of that name, with which texts begin or end; None if there is none."""
    value = config.get(name)
    text = value.get("content") if isinstance(value, dict) else value
    return (vocabulary[text], text) if isinstance(text, str) and text in vocabulary else None


def named_tokens(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Special tokens that have names, and lists of others, as `added_token` takes them."""
    for name, value in config.items():
        values = [value] if name.endswith("_token") else value if name in _LISTS else []
        for one in values.values() if isinstance(values, dict) else values or []:
            if isinstance(one, str | dict):
                yield ({"content": one} if isinstance(one, str) else one) | {"special": True}


def _add(directory: Path, tokens: list[Token], vocabulary: dict[str, int]) -> None:
    texts = {number: text for text, number in vocabulary.items()}
    for number, text in tokens:
        whole = type(number) is int and 0 <= number <= MOST_SIZE
        if not whole or not isinstance(text, str) or not text:
            raise FileError(
                f"{directory / CONFIG}: {str(text)[:40]!r}: {str(number)[:40]} is no id of a token"
            )
        if texts.setdefault(number, text) != text or vocabulary.setdefault(text, number) != number:
            raise FileError(f"{directory / CONFIG}: {text[:40]!r}: token {number} is {texts[number][:40]!r}")
