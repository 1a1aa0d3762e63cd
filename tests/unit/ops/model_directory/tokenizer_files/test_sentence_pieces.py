"""Directories with tokenizer.model, beside a plain version of SentencePiece's algorithm and transformers."""

import json
import random
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import GemmaTokenizer, LlamaTokenizer
from transformers.convert_slow_tokenizer import generate_merges

from ops.model_directory import tokenizer_json
from ops.model_directory.hub import HubError, fetched
from ops.model_directory.tokenizer_files import sentence_pieces
from ops.model_directory.tokenizer_files.sentence_pieces import Piece
from ops.model_directory.tokenizer_json import merges_of
from tests.support.byte_tokens import TEXTS
from tokenizer_svc.model.tokenizer import TextModel

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
BEGIN = [Piece("<unk>", 0, UNKNOWN), Piece("<s>", 0, CONTROL), Piece("</s>", 0, CONTROL)]
OCTETS = [Piece(f"<0x{octet:02X}>", 0, BYTE) for octet in range(256)]
MARKED = ["<s>[INST] Hi [/INST]ok</s> more", "</s>a</s>  b", "a<turn>\n b", "  two", " ", "a   b    c"]
LLAMA = {"tokenizer_class": "LlamaTokenizer", "legacy": True}


def number(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def written(key: int, value: int | float | bytes) -> bytes:
    """A field of a protobuf."""
    if isinstance(value, bytes):
        return number(key << 3 | 2) + number(len(value)) + value
    if isinstance(value, float):
        return number(key << 3 | 5) + struct.pack("<f", value)
    return number(key << 3) + number(value)


def message(*fields: tuple[int, int | float | bytes]) -> bytes:
    return b"".join(written(*each) for each in fields)


def file_of(pieces: Sequence[Piece], kind: int = 2, prefixed: int = 1, **more: int | bytes) -> bytes:
    """A model's file, with settings as of Llama's, and some that are not read."""
    trainer = message((1, b"corpus.txt"), (3, kind), (10, 0.9995), (35, 1), (24, more.get("suffixed", 0)))
    normalizer = message(
        *((1, b"identity"), (2, more.get("characters", b"")), (3, prefixed)),
        *((4, more.get("strips", 0)), (5, more.get("escapes", 1))),
    )
    texts = ((1, message((1, one.text.encode()), (2, float(one.score)), (3, one.kind))) for one in pieces)
    return message(*texts, (2, trainer), (3, normalizer), (4, message((1, b"self test"))), (9, 7))


def learned(ordered: bool = True) -> list[Piece]:
    """Pieces of a short training: letters, and what merges most often; runs of spaces merge last."""
    drawn = random.Random(0)
    words = {f"▁{word}" for word in " ".join([*TEXTS, Path(__file__).read_text()]).split() if word.isalpha()}
    texts = sorted({*"".join(words), *"语[]/\n"})
    for word in sorted(sorted(words), key=lambda word: drawn.random()):
        texts += [word[:end] for end in range(2, len(word) + 1)]
        texts += [word[start : start + 2] for start in range(1, len(word) - 1)]
    texts = list(dict.fromkeys(texts))[:900]
    pieces = [Piece(text, -float(place), NORMAL) for place, text in enumerate(texts)]
    spaces = [Piece("▁" * length, -1e9, NORMAL) for length in (2, 4)]
    return [*BEGIN, *OCTETS, *pieces, *spaces] if ordered else [*BEGIN, *OCTETS, *spaces, *pieces]


def plainly(pieces: Sequence[Piece], text: str) -> list[int]:
    """SentencePiece: the two neighbours whose piece has the highest score are merged, the first such."""
    ids = {piece.text: place for place, piece in enumerate(pieces)}
    found = list(text.replace(" ", "▁"))
    while True:
        pairs = [
            (pieces[ids[left + right]].score, -place)
            for place, (left, right) in enumerate(pairwise(found))
            if left + right in ids
        ]
        if not pairs:
            break
        place = -max(pairs)[1]
        found[place : place + 2] = [found[place] + found[place + 1]]
    octets = {place: [ids[f"<0x{octet:02X}>"] for octet in one.encode()] for place, one in enumerate(found)}
    return [each for place, one in enumerate(found) for each in ([ids[one]] if one in ids else octets[place])]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "old"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


def made(model: Path, content: bytes, **config: Any) -> TextModel:
    (model / "tokenizer.model").write_bytes(content)
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    return TextModel.load(fetched(model))


@pytest.mark.parametrize("ordered", [False, True])
def test_tokens_are_those_of_sentencepiece(model: Path, ordered: bool) -> None:
    pieces = learned(ordered)
    found = made(model, file_of(pieces), **LLAMA)
    for text in [*TEXTS, *MARKED[3:], *Path(__file__).read_text().splitlines(keepends=True)]:
        if "<" not in text and text:
            assert found.encode(text, special=True) == [1, *plainly(pieces, f" {text}")], text
    assert found.special_tokens.keys() == {"<unk>", "<s>", "</s>"}
    assert found.end_tokens == (2,)
    assert found.token_characters


@pytest.mark.parametrize(
    "config",
    [
        {"legacy": False, "add_bos_token": True},
        {"legacy": False, "add_bos_token": False, "add_prefix_space": False},
        {"legacy": True, "add_bos_token": True, "add_prefix_space": False},
        {"legacy": False, "add_bos_token": True, "add_eos_token": True},
    ],
)
def test_the_configuration_says_what_texts_begin_with(model: Path, config: dict[str, Any]) -> None:
    pieces = learned()
    found = made(model, file_of(pieces), tokenizer_class="LlamaTokenizerFast", **config)
    vocabulary = {piece.text: place for place, piece in enumerate(pieces)}
    merges = merges_of(vocabulary, [-float(place) for place in range(len(pieces))])
    theirs = LlamaTokenizer(vocab=vocabulary, merges=[(left, right) for left, right in merges], **config)
    for text in [*TEXTS, *MARKED]:
        assert found.encode(text, special=True) == theirs(text).input_ids, text


def test_what_nothing_says_is_as_in_old_models(model: Path) -> None:
    pieces = learned()
    found = made(model, file_of(pieces, prefixed=0), tokenizer_class="LlamaTokenizer")
    assert found.encode("the", special=True) == [1, *plainly(pieces, "the")]
    found = made(model, file_of(pieces), tokenizer_class="LlamaTokenizer")
    assert found.encode("the</s>the", special=True) == [
        *(1, *plainly(pieces, " the")),
        *(2, *plainly(pieces, " the")),
    ]


def test_gemma(model: Path) -> None:
    defined = [Piece(text, 0, USER_DEFINED) for text in ("<mask>", "<turn>", "\n\n", "▁▁", "▁▁▁")]
    begin = [Piece("<pad>", 0, CONTROL), Piece("<eos>", 0, CONTROL), Piece("<bos>", 0, CONTROL)]
    rest = [piece for piece in learned() if piece.kind == NORMAL and piece.score > -1e8]
    pieces = [*begin, Piece("<unk>", 0, UNKNOWN), *defined, *OCTETS, *rest]
    found = made(model, file_of(pieces, prefixed=0), tokenizer_class="GemmaTokenizer")
    vocabulary = {piece.text: place for place, piece in enumerate(pieces)}
    merges = generate_merges(vocabulary, {piece.text: piece.score for piece in pieces})
    theirs = GemmaTokenizer(vocab=vocabulary, merges=merges, add_bos_token=True)
    theirs.add_tokens(["<turn>", "\n\n", "<mask>"])
    for text in [*TEXTS, *MARKED[2:], "a\n\nb\n\n\n<eos><mask>"]:
        assert found.encode(text, special=True) == theirs(text).input_ids, text
    assert found.end_tokens == (1,)
    assert found.special_tokens.keys() == {"<pad>", "<eos>", "<bos>", "<unk>"}


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 9, 50])
def test_runs_of_spaces_that_the_user_has_defined(model: Path, length: int) -> None:
    """SentencePiece takes the longest such piece at each place from the left, before it merges anything."""
    lengths = (2, 3, 4, 5)
    others = (piece for piece in learned() if piece.text.strip("▁") or len(piece.text) == 1)
    pieces = [*others, *(Piece("▁" * length, 0, USER_DEFINED) for length in lengths)]
    found = made(model, file_of(pieces, prefixed=0), tokenizer_class="GemmaTokenizer", add_bos_token=False)
    whole, rest = divmod(length, max(lengths))
    ids = {piece.text: place for place, piece in enumerate(pieces)}
    expected = [ids["▁" * max(lengths)]] * whole + ([ids["▁" * rest]] if rest else [])
    assert found.encode(" " * length, special=True) == expected


def test_tokens_that_were_added_later(model: Path) -> None:
    (model / "added_tokens.json").write_text('{"[PAD]": 9000}')
    found = made(model, file_of(learned()), **LLAMA, pad_token="[PAD]")
    assert found.encode("[PAD]", special=True) == [1, 9000]
    assert found.special_tokens["[PAD]"] == 9000


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (file_of(learned(), kind=1), "model_type: 1 is not supported (2)"),
        (file_of(learned(), suffixed=1), "treat_whitespace_as_suffix: 1 is not supported (0)"),
        (file_of(learned(), characters=b"table"), "precompiled_charsmap: b'table' is not supported"),
        (file_of(learned(), strips=1), "remove_extra_whitespaces: 1 is not supported (0)"),
        (file_of(learned(), escapes=0), "escape_whitespaces: 0 is not supported (1)"),
        (b"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS"),
        (b"", "model_type: 1 is not supported (2)"),
        (file_of(learned())[:5000], "no protobuf, or not all of it"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "no protobuf, or not all of it"),
        (file_of([*learned(), Piece("▁", -5, NORMAL)]), "two pieces have the same text"),
        (file_of([*learned(), Piece("", -5, NORMAL)]), "a piece has no text of 1 to 1024 bytes"),
        (file_of([*learned(), Piece("x" * 2000, -5, NORMAL)]), "a piece has no text of 1 to 1024 bytes"),
        (file_of([*learned(), Piece("x", float("nan"), NORMAL)]), "a piece has no score"),
        (file_of(learned()).replace("语".encode(), b"\xff\xff\xff"), "can't decode byte 0xff"),
        (message((1, 5)) + file_of(learned())[:-2] + b"\x4f", "no protobuf: a field of type 7"),
    ],
)
def test_what_is_wrong_is_one_line(model: Path, content: bytes, text: str) -> None:
    with pytest.raises(HubError) as error:
        made(model, content, **LLAMA)
    assert text in str(error.value)
    assert "\n" not in str(error.value)
    assert str(model) in str(error.value)


def test_a_class_that_is_not_known_is_named(model: Path) -> None:
    with pytest.raises(HubError, match=r"'XGLMTokenizer' without tokenizer\.json is not supported"):
        made(model, file_of(learned()), tokenizer_class="XGLMTokenizer")


def test_bounds(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_pieces, "MOST_PIECES", 300)
    with pytest.raises(HubError, match="there are more than 300 pieces"):
        made(model, file_of(learned()), **LLAMA)
    with (model / "tokenizer.model").open("wb") as sparse:
        sparse.truncate(2**30)
    (model / "tokenizer_config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(HubError, match="1073741824 bytes are too many, 16777216 at most"):
        fetched(model)


def test_merges_that_would_take_too_long(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_json, "MOST_CUT", 1000)
    with pytest.raises(
        HubError, match=rf"^{model}/tokenizer\.model: \d+ tokens with \d+ characters have too many merges$"
    ):
        made(model, file_of(learned()), **LLAMA)
