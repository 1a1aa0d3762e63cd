"""Llama, Gemma and their kin, which have a model of SentencePiece.

    tokenizer.model          pieces of text with scores and types, and settings, as a protobuf (ModelProto in
                             sentencepiece_model.proto of https://github.com/google/sentencepiece)
    tokenizer_config.json    the class, and what it changes

Pieces that the user has defined merge first, then others by their scores, as in SentencePiece. transformers 5
takes the order of their ids instead, which gives spaces in a row other tokens in Mistral 7B. Pieces of
the user are found before the rest of a text gets its space in front: as in transformers without `legacy`, not
as in SentencePiece.
"""

import struct
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from ops.model_directory.files import FileError, not_there
from ops.model_directory.tokenizer_files.added_tokens import CONFIG, added_tokens, config_of, named_token
from ops.model_directory.tokenizer_json import added_token, check_lengths, merges_of, pieces, tokenizer_json

MODEL = "tokenizer.model"
MOST_BYTES = 2**24
"""Size of the file. Gemma 3's has 5 MB."""
MOST_PIECES = 2**20
"""Gemma 3 has 262,144."""
MOST_TEXT = 1024
"""Bytes of a piece."""

Field = int | bytes
"""A value of a protobuf: a number, or what has a length."""

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
"""Fields of the model."""
_TEXT, _SCORE, _TYPE = 1, 2, 3
"""Fields of a piece."""
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
"""Types of pieces."""
_DUMMY_PREFIX = 3
"""A field of the normalizer."""
_NEEDED: tuple[tuple[int, int, str, Field, Field], ...] = (
    (_TRAINER, 3, "model_type", 1, 2),
    (_TRAINER, 24, "treat_whitespace_as_suffix", 0, 0),
    (_NORMALIZER, 2, "precompiled_charsmap", b"", b""),
    (_NORMALIZER, 4, "remove_extra_whitespaces", 1, 0),
    (_NORMALIZER, 5, "escape_whitespaces", 1, 1),
)
"""Settings of which one value is supported: part of the model, field, name, value if there is none, that one.
Model type 2 is BPE."""

_CLASSES = {
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "GemmaTokenizer": {
        **{"bos_token": "<bos>", "eos_token": "<eos>"},
        **{"unk_token": "<unk>", "pad_token": "<pad>"},
    },
}
"""Names of tokens that a class has without being told, as transformers has them."""


class Piece(NamedTuple):
    """A token as the file has it."""

    text: str
    score: float
    kind: int


def of_pieces(directory: Path) -> dict[str, Any]:
    """The files that are made: tokenizer.json, tokenizer_config.json. Raises `FileError`."""
    name, config = config_of(directory, _CLASSES)
    found, normalizer = _read(directory / MODEL)
    vocabulary = {piece.text: number for number, piece in enumerate(found)}
    defined = {number for number, piece in enumerate(found) if piece.kind == _USER_DEFINED}
    merges = merges_of(vocabulary, [piece.score for piece in found], defined)
    unknown = next((piece.text for piece in found if piece.kind == _UNKNOWN), None)
    added = {
        number: added_token(number, piece.text, special=piece.kind == _CONTROL)
        for number, piece in enumerate(found)
        if piece.kind in (_CONTROL, _USER_DEFINED)
    }
    added |= {one["id"]: one for one in added_tokens(directory, config, vocabulary)}
    first = named_token(config, "bos_token", vocabulary) if config.get("add_bos_token") is not False else None
    last = named_token(config, "eos_token", vocabulary) if config.get("add_eos_token") is True else None
    given = config.get("add_prefix_space")
    prefixed = given if isinstance(given, bool) else normalizer.get(_DUMMY_PREFIX, 1) == 1
    prefixed = prefixed and name != "GemmaTokenizer"
    model = pieces(vocabulary, merges, unknown, prefixed, once=config.get("legacy") is False)
    tokens = [added[number] for number in sorted(added)]
    return {"tokenizer.json": tokenizer_json(tokens, model, first, last), CONFIG: config}


def _read(path: Path) -> tuple[list[Piece], Mapping[int, Field]]:
    """Pieces, and settings of the normalizer. Raises `FileError`."""
    try:
        if why := not_there(path):
            raise ValueError(why)
        if (size := path.stat().st_size) > MOST_BYTES:
            raise ValueError(f"{size} bytes are too many, {MOST_BYTES} at most")
        found = list[Piece]()
        settings: dict[int, Mapping[int, Field]] = {_TRAINER: {}, _NORMALIZER: {}}
        for number, value in _fields(path.read_bytes()):
            if number == _PIECES and isinstance(value, bytes):
                found.append(_piece(dict(_fields(value))))
                if len(found) > MOST_PIECES:
                    raise ValueError(f"there are more than {MOST_PIECES} pieces")
            elif number in settings and isinstance(value, bytes):
                settings[number] = dict(_fields(value))
        texts = {piece.text for piece in found}
        if len(texts) < len(found):
            raise ValueError("two pieces have the same text")
        check_lengths(texts)
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: {error}") from error
    for part, number, name, absent, needed in _NEEDED:
        if (value := settings[part].get(number, absent)) != needed:
            raise FileError(f"{path}: {name}: {str(value)[:40]} is not supported ({needed!r})")
    return found, settings[_NORMALIZER]


def _piece(fields: Mapping[int, Field]) -> Piece:
    """Raises `ValueError`."""
    text, number, kind = fields.get(_TEXT), fields.get(_SCORE, bytes(4)), fields.get(_TYPE, _NORMAL)
    if not isinstance(text, bytes) or not isinstance(kind, int) or not 0 < len(text) <= MOST_TEXT:
        raise ValueError(f"a piece has no text of 1 to {MOST_TEXT} bytes, or no type")
    score = struct.unpack("<f", number)[0] if isinstance(number, bytes) and len(number) == 4 else float("nan")
    if not isfinite(score):
        raise ValueError("a piece has no score")
    return Piece(text.decode(), score, kind)


def _fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """Numbers and values of a protobuf's fields. Raises `ValueError`."""
    place = 0
    while place < len(data):
        key, place = _number(data, place)
        match key & 7:
            case 0:
                value, place = _number(data, place)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, place = _number(data, place)
            case 5:
                size = 4
            case kind:
                raise ValueError(f"no protobuf: a field of type {kind}")
        if place + size > len(data):
            raise ValueError("no protobuf, or not all of it")
        yield key >> 3, data[place : place + size]
        place += size


def _number(data: bytes, place: int) -> tuple[int, int]:
    """A number of variable length, and the place behind it. Raises `ValueError`."""
    found = 0
    for index in range(10):
        if place + index >= len(data):
            break
        found |= (data[place + index] & 127) << 7 * index
        if data[place + index] < 128:
            return found, place + index + 1
    raise ValueError("no protobuf, or not all of it")
