"""tokenizer.json and tokenizer_config.json from the values of a GGUF file.

gpt2     byte-level BPE: tokens and merges are in the file; how text is split before is known by name
llama    SentencePiece: tokens with scores; merges follow from these
gemma4   as SentencePiece, with merges in the file
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ops.model_directory.gguf.file import Gguf
from ops.model_directory.gguf.splits import BEGINS, COMPOSED, SPLITS, WHOLE_MERGES
from ops.model_directory.tokenizer_json import (
    SPACE,
    Token,
    added_token,
    byte_level,
    check_lengths,
    merges_of,
    pieces,
    tokenizer_json,
)

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Types of tokens."""

MOST_CHARACTERS = 4096
"""Characters of a token. Real ones have some hundred at most. Each is cut everywhere to find merges."""

_PIECES = ("llama", "gemma4")
"""Models whose tokens are pieces of text, with marks for spaces."""

_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def tokenizer_of(file: Gguf) -> dict[str, Any]:
    """tokenizer.json. Raises `FileError`."""
    tokens: list[Any] = file.get("tokenizer.ggml.tokens", list, [])
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise file.wrong("tokenizer.ggml.tokens", "a list of texts is needed")
    if (longest := max(map(len, tokens))) > MOST_CHARACTERS:
        raise file.wrong("tokenizer.ggml.tokens", f"one has {longest} characters, {MOST_CHARACTERS} at most")
    types: list[Any] = file.get("tokenizer.ggml.token_type", list, [])
    kind = file.get("tokenizer.ggml.model", str)
    if kind == "gpt2":
        model = _byte_level(file, tokens)
    elif kind in _PIECES:
        tokens = [SPACE * len(token) if token.strip(" ") == "" else token for token in tokens]
        model = _sentence_piece(file, tokens)
    else:
        raise file.wrong("tokenizer.ggml.model", f"{kind!r} is not supported (gpt2, llama, gemma4)")
    special = {UNKNOWN, CONTROL} if kind in _PIECES else {CONTROL}
    vocabulary = model["model"]["vocab"]
    added = (
        added_token(number, token, each in special)
        for number, (token, each) in enumerate(zip(tokens, types, strict=False))
        if each in (*special, USER_DEFINED) and token and vocabulary[token] == number
    )
    begins, ends = _begins(file, kind), file.get("tokenizer.ggml.add_eos_token", bool, False)
    first = _named(file, "tokenizer.ggml.bos_token_id", tokens) if begins else None
    last = _named(file, "tokenizer.ggml.eos_token_id", tokens) if ends else None
    return tokenizer_json(added, model, first, last)


def tokenizer_config_of(file: Gguf) -> dict[str, Any]:
    """tokenizer_config.json: the texts of tokens with a name, and the chat template. Raises `FileError`."""
    tokens: list[Any] = file.get("tokenizer.ggml.tokens", list, [])
    found = {}
    for name, key in _NAMES.items():
        number = _token(file, f"tokenizer.ggml.{name}_token_id", tokens)
        if number is not None:
            found[key] = tokens[number]
    if template := file.get("tokenizer.chat_template", str):
        found["chat_template"] = template
        if for_tools := file.get("tokenizer.chat_template.tool_use", str):
            found["chat_template"] = {"default": template, "tool_use": for_tools}
    return found


def _token(file: Gguf, key: str, tokens: Sequence[str]) -> int | None:
    number: int | None = file.get(key, int)
    if number is not None and not 0 <= number < len(tokens):
        raise file.wrong(key, f"{number}, but there are {len(tokens)} tokens")
    return number


def _named(file: Gguf, key: str, tokens: Sequence[str]) -> Token | None:
    number = _token(file, key, tokens)
    return None if number is None else (number, tokens[number])


def _byte_level(file: Gguf, tokens: Sequence[str]) -> dict[str, Any]:
    name = file.get("tokenizer.ggml.pre", str, "default")
    if name not in SPLITS:
        raise file.wrong("tokenizer.ggml.pre", f"{name!r} is not supported ({', '.join(SPLITS)})")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges, whole = _known_merges(file, vocabulary), name in WHOLE_MERGES
    return byte_level(SPLITS[name], vocabulary, merges, whole, composed=name in COMPOSED)


def _sentence_piece(file: Gguf, tokens: Sequence[str]) -> dict[str, Any]:
    gemma = file.get("general.architecture", str, "").startswith("gemma")
    prefixed = file.get("tokenizer.ggml.add_space_prefix", bool, not gemma)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    unknown = _token(file, "tokenizer.ggml.unknown_token_id", tokens)
    text = None if unknown is None else tokens[unknown]
    return pieces(vocabulary, _merges_of_pieces(file, vocabulary, gemma), text, prefixed)


def _merges_of_pieces(file: Gguf, vocabulary: Mapping[str, int], gemma: bool) -> list[list[str]]:
    """Those of the file, or those that follow from the scores of its tokens."""
    if file.get("tokenizer.ggml.model", str) == "gemma4":
        return _known_merges(file, vocabulary)
    scores: list[Any] = file.get("tokenizer.ggml.scores", list, [])
    if len(scores) != (count := len(file.get("tokenizer.ggml.tokens", list, []))):
        raise file.wrong("tokenizer.ggml.scores", f"{len(scores)}, but there are {count} tokens")
    try:
        check_lengths(vocabulary.keys())
    except ValueError as error:
        raise file.wrong("tokenizer.ggml.tokens", str(error)) from error
    types: list[Any] = file.get("tokenizer.ggml.token_type", list, [])
    defined = {number for number, each in enumerate(types) if each == USER_DEFINED}
    # Gemma's merges have the order of its tokens, not of their scores.
    return merges_of(vocabulary, [float(-number) for number in range(count)] if gemma else scores, defined)


def _known_merges(file: Gguf, vocabulary: Mapping[str, int]) -> list[list[str]]:
    """Merges of the file, without those of which a token is missing."""
    merges: list[Any] = file.get("tokenizer.ggml.merges", list, [])
    pairs = [pair for merge in merges if len(pair := str(merge).split(" ")) == 2]
    return [
        [left, right]
        for left, right in pairs
        if left in vocabulary and right in vocabulary and left + right in vocabulary
    ]


def _begins(file: Gguf, kind: str) -> bool:
    """Whether texts begin with the bos token."""
    assumed = kind in _PIECES or file.get("tokenizer.ggml.pre", str) in BEGINS
    found: bool = file.get("tokenizer.ggml.add_bos_token", bool, assumed)
    return found
