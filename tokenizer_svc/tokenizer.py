"""What a model directory says of text: vocabulary, chat template, end tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import tokenizers

from tokenizer_svc.defaults import read_defaults
from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError
from tokenizer_svc.pooling import PLACE, ways_in
from tokenizer_svc.template import ChatTemplate
from tokenizer_svc.token_bytes import TokenBytes


@dataclass(frozen=True, repr=False)
class TextModel:
    """A model's way with text. Nothing in it changes; all requests share it."""

    tokenizer: tokenizers.Tokenizer
    vocab_size: int
    """Token ids are below this."""
    end_tokens: tuple[int, ...]
    """Any of them ends an answer."""
    defaults: Mapping[str, float]
    """What counts where a request leaves a field out; see `defaults.py`."""
    template: ChatTemplate | None
    """None: the model holds no conversations."""
    every_token: TokenBytes
    """The bytes of all tokens."""
    plain_tokens: TokenBytes
    """The bytes of all tokens, of special ones none."""
    pooling_ways: tuple[str, ...]
    """How its texts are embedded; see `pooling.py`."""

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read a Hugging Face directory. Raises `ModelDirectoryError` with one line on what is wrong."""
        if not directory.is_dir():
            raise ModelDirectoryError(f"{directory} is not a directory")
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ModelDirectoryError(f"{directory} is no model directory: it has no tokenizer.json")
        try:
            source = path.read_text(encoding="utf-8")
            tokenizer = tokenizers.Tokenizer.from_str(source)
            decoder = json.loads(source).get("decoder")
        # The library raises plain Exception for a file that it cannot read.
        except Exception as error:
            raise ModelDirectoryError(f"{path} is no tokenizer: {error}") from error
        # What a file may ask for when it was made for training.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        named = _named_tokens(_read_json(directory / "tokenizer_config.json"))
        config = _read_json(directory / "config.json")
        generation = _read_json(directory / "generation_config.json")
        special = [token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special]
        return cls(
            tokenizer=tokenizer,
            vocab_size=_vocab_size(tokenizer, config),
            end_tokens=_end_tokens((generation, config), tokenizer, named),
            defaults=read_defaults(directory / "generation_config.json", generation),
            template=_template(directory, named),
            every_token=TokenBytes(tokenizer, decoder, ()),
            plain_tokens=TokenBytes(tokenizer, decoder, special),
            pooling_ways=ways_in(_read_json(directory / PLACE)),
        )

    def encode(self, text: str, special: bool) -> list[int]:
        """Text as tokens; `special` adds those that the tokenizer begins and ends a text with.

        Takes about 1 s for a million characters, in which other threads run.
        """
        # The batch call is the one that releases the interpreter lock.
        ids: list[int] = self.tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation as tokens, ready for the answer. The template writes special tokens itself.

        Raises `InvalidRequestError` if the model has no template or its template refuses.
        """
        if self.template is None:
            raise InvalidRequestError("messages", "this model has no chat template: use plain completions")
        return self.encode(self.template.render(messages), special=False)


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelDirectoryError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelDirectoryError(f"{path} holds no object")
    return value


def _named_tokens(config: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json with tokens written as objects replaced by their text."""
    return {
        name: value["content"] if name.endswith("_token") and isinstance(value, dict) else value
        for name, value in config.items()
    }


def _vocab_size(tokenizer: tokenizers.Tokenizer, config: dict[str, Any]) -> int:
    """The rows of the model's embedding, which may be more than the tokenizer has tokens."""
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return int(size) if size else max(tokenizer.get_vocab().values(), default=-1) + 1


def _end_tokens(
    configs: Sequence[dict[str, Any]], tokenizer: tokenizers.Tokenizer, named: dict[str, Any]
) -> tuple[int, ...]:
    """The first that says something: generation_config.json, config.json, the tokenizer's eos_token."""
    for source in (*configs, configs[-1].get("text_config", {})):
        match source.get("eos_token_id"):
            case None | []:
                continue
            case int(token):
                ids = [token]
            case other:
                ids = other
        if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
            raise ModelDirectoryError(f"eos_token_id: {ids!r} is not a token id or a list of them")
        return tuple(ids)
    eos = named.get("eos_token")
    end: int | None = tokenizer.token_to_id(eos) if isinstance(eos, str) else None
    return () if end is None else (end,)


def _template(directory: Path, named: dict[str, Any]) -> ChatTemplate | None:
    """The template: of chat_template.jinja, else of tokenizer_config.json (the default of several)."""
    path = directory / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else named.get("chat_template")
    if isinstance(source, list):
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if not isinstance(source, str):
        return None
    tokens = {
        name: value for name, value in named.items() if name.endswith("_token") and isinstance(value, str)
    }
    return ChatTemplate(source, tokens)
