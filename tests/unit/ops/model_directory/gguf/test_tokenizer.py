"""Tokenizers of GGUF files: the tokens of the shipped model's own, and those of transformers."""

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.normalizers import NFC, Replace
from tokenizers.pre_tokenizers import Split
from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX

from ops.model_directory.files import FileError
from ops.model_directory.gguf.file import read_gguf
from ops.model_directory.gguf.splits import SPLITS
from ops.model_directory.gguf.tokenizer import USER_DEFINED, tokenizer_config_of, tokenizer_of
from ops.model_directory.settings import SHIPPED_MODEL
from ops.model_directory.tokenizer_json import SPACE
from tests.support.gguf import write_gguf

TEXTS = (
    "The fox said: 'I'll walk 12345 steps, won't you?'\n\n  Two  spaces\tand a tab.",
    " leading space, ÄÖÜ äöü ß, 日本語, 🦊🦉 e\u0301 CamelCaseWORDs // a_b-c\r\n\r\nend ",
    "<|user|>a<|end|> <s>b</s>",
    "",
    "x",
)


def shipped() -> dict[str, Any]:
    """Values of the shipped model's tokenizer."""
    content = json.loads((SHIPPED_MODEL / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    texts = sorted(vocabulary, key=vocabulary.get)
    special = {each["id"] for each in content["added_tokens"]}
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [3 if number in special else 1 for number in range(len(texts))],
        "tokenizer.ggml.merges": [
            each if isinstance(each, str) else " ".join(each) for each in content["model"]["merges"]
        ],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 4,
    }


def pieces(**more: Any) -> dict[str, Any]:
    """Values of a tokenizer of SentencePiece with random scores."""
    drawn = random.Random(0)
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{octet:02X}>" for octet in range(256))]
    types = [2, 3, 3, *[6] * 256]
    plain = sorted({*"abcdefghijklmnopqrstuvwxyzTI.,'ß語" + SPACE, *("th", "he", "the", f"{SPACE}t", "sa")})
    plain += [
        f"{SPACE}the",
        "said",
        "ai",
        "id",
        "fo",
        "ox",
        "fox",
        f"{SPACE}fox",
        f"{SPACE}a",
        "wal",
        "alk",
        "wa",
    ]
    plain += ["lk", "walk", "<mark>", "ste", "st", "eps", "ps", "ep", f"{SPACE}s", f"{SPACE}{SPACE}"]
    types += [4 if text == "<mark>" else 1 for text in plain]
    texts += plain
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": [-float(drawn.randrange(1, 10_000)) for _ in texts],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


def both(path: Path, values: dict[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    """Our tokenizer of a file with these values, and transformers'."""
    write_gguf(path, values, {})
    architecture, tokens, _ = get_gguf_tokenizer(str(path))
    theirs, _ = convert_gguf_tokenizer(architecture, tokens)
    return Tokenizer.from_str(json.dumps(tokenizer_of(read_gguf(path)))), theirs


def equal(ours: Tokenizer, theirs: Tokenizer) -> None:
    for text in TEXTS:
        found = ours.encode(text, add_special_tokens=False).ids
        assert found == theirs.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(found, skip_special_tokens=False) == theirs.decode(
            found, skip_special_tokens=False
        )


def test_the_shipped_tokenizer(tmp_path: Path) -> None:
    ours, _ = both(tmp_path / "a.gguf", shipped())
    equal(ours, Tokenizer.from_file(str(SHIPPED_MODEL / "tokenizer.json")))


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken", "gpt-4o", "gpt-2"])
def test_text_is_split_as_in_transformers(tmp_path: Path, pre: str) -> None:
    ours, theirs = both(tmp_path / "a.gguf", shipped() | {"tokenizer.ggml.pre": pre})
    if pre == "qwen2":
        theirs.normalizer = NFC()  # as in Qwen2Tokenizer; its reader of GGUF files leaves it out
    equal(ours, theirs)


def test_text_is_split_as_in_qwen_3_5(tmp_path: Path) -> None:
    """Marks belong to the letters before them. The split is that of transformers' own tokenizer."""
    assert SPLITS["qwen35"] == ((PRETOKENIZE_REGEX,), False)
    path = write_gguf(tmp_path / "a.gguf", shipped() | {"tokenizer.ggml.pre": "qwen35"}, {})
    found = Tokenizer.from_str(json.dumps(tokenizer_of(read_gguf(path))))
    text = "हिन्दी 12 e\u0301"
    parts = found.pre_tokenizer.pre_tokenize_str(text)
    assert [text[slice(*place)] for _, place in parts] == ["हिन्दी", " ", "1", "2", " e\u0301"]
    assert found.normalizer.normalize_str("e\u0301") == "\u00e9"


def test_text_is_split_as_in_deepseek_3(tmp_path: Path) -> None:
    """The parts are those of the model's own tokenizer.json."""
    path = write_gguf(tmp_path / "a.gguf", shipped() | {"tokenizer.ggml.pre": "deepseek-v3"}, {})
    splits = Tokenizer.from_str(json.dumps(tokenizer_of(read_gguf(path)))).pre_tokenizer
    text = "Two  12345日本カナ fox's, //a_b e\u0301!\r\n\n x"
    found = [text[slice(*place)] for _, place in splits.pre_tokenize_str(text)]
    assert found == [
        *("Two", "  ", "123", "45", "日本カナ", " fox", "'s", ",", " //"),
        *("a", "_b", " e\u0301", "!\r\n\n", " x"),
    ]


SPLIT_TEXT = "Two  12345日本カナ fox's, //a_b e\u0301!\r\n\n Ωmega ա1 "


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("deepseek-llm", "Two|  |12345|日本カナ| fox|'|s|,| //|a|_|b| e|\u0301|!|\r|\n|\n| Ω|mega| ա|1| "),
        (
            "deepseek-coder",
            "Two|  |1|2|3|4|5|日本カナ| fox|'|s|,| //|a|_|b| e|\u0301|!|\r|\n|\n| Ωmega| ա|1| ",
        ),
        ("kimi-k2", "Two| | |123|45|日本|カナ| fox's|,| //|a|_b| e\u0301|!\r\n\n| Ωmega| ա|1| "),
        ("falcon", "Two| | |123|45|日本カナ| fox|'|s|,| |//|a|_|b| e|\u0301|!|\r\n\n| Ωmega| ա|1| "),
        ("bloom", "Two| | 12345日本カナ| fox's|,| //a_b| e\u0301|!\r\n\n| Ωmega| ա1| "),
        ("viking", "Two| | |1|2|3|4|5|日本カナ| fox's|,| //a_b| e\u0301|!\r\n\n| Ωmega| ա|1| "),
        ("seed-coder", "Two| | |1|2|3|4|5|日本カナ| fox|'s|,| //|a|_b| e|\u0301!|\r\n\n| Ωmega| ա|1| "),
    ],
)
def test_parts_of_a_text(tmp_path: Path, pre: str, expected: str) -> None:
    path = write_gguf(tmp_path / "a.gguf", shipped() | {"tokenizer.ggml.pre": pre}, {})
    splits = Tokenizer.from_str(json.dumps(tokenizer_of(read_gguf(path)))).pre_tokenizer
    assert "|".join(SPLIT_TEXT[slice(*place)] for _, place in splits.pre_tokenize_str(SPLIT_TEXT)) == expected


def test_every_name_splits_text(tmp_path: Path) -> None:
    for pre in SPLITS:
        path = write_gguf(tmp_path / "a.gguf", shipped() | {"tokenizer.ggml.pre": pre}, {})
        found = Tokenizer.from_str(json.dumps(tokenizer_of(read_gguf(path))))
        for text in TEXTS[:2]:
            text = unicodedata.normalize("NFC", text)
            assert found.decode(found.encode(text, add_special_tokens=False).ids) == text


def test_gemma_4_has_the_merges_of_its_file(tmp_path: Path) -> None:
    """As the model's own tokenizer.json has them: bytes where a character is no token, spaces as marks."""
    merges = ["t h", "th e", f"{SPACE} the", "f o", "fo x", f"{SPACE} fox", "s a", "w a", "l k", "wa lk"]
    values = pieces(
        **{
            "general.architecture": "gemma4",
            "tokenizer.ggml.model": "gemma4",
            "tokenizer.ggml.merges": merges,
        }
    )
    path = write_gguf(tmp_path / "a.gguf", values, {})
    ours = Tokenizer.from_str(json.dumps(tokenizer_of(read_gguf(path))))
    texts = values["tokenizer.ggml.tokens"]
    bpe = BPE(
        {text: number for number, text in enumerate(texts)},
        [tuple(each.split(" ")) for each in merges],
        byte_fallback=True,
        fuse_unk=True,
        unk_token="<unk>",
    )
    theirs = Tokenizer(bpe)
    theirs.normalizer = Replace(" ", SPACE)
    theirs.pre_tokenizer = Split(" ", "merged_with_previous")
    theirs.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    for text in ("The fox walks: the  fox", " the\n\nfox ä 🦊", "", "x"):
        assert (found := ours.encode(text, add_special_tokens=False).ids) == theirs.encode(text).ids
        assert ours.decode(found) == theirs.decode(found) == text
    assert ours.encode("the").ids[0] == 1


@pytest.mark.parametrize("architecture", ["phi3", "gemma2"])
def test_sentence_piece_as_in_transformers(tmp_path: Path, architecture: str) -> None:
    values = pieces(**{"general.architecture": architecture})
    equal(*both(tmp_path / "a.gguf", values))


def test_spaces_of_gemma_are_marks(tmp_path: Path) -> None:
    values = pieces(**{"general.architecture": "gemma3"})
    texts = values["tokenizer.ggml.tokens"]
    texts[texts.index(SPACE * 2)] = "  "
    equal(*both(tmp_path / "a.gguf", values))


@pytest.mark.parametrize("architecture", ["gemma3", "llama"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 9, 50])
def test_runs_of_spaces_that_the_user_has_defined(tmp_path: Path, architecture: str, length: int) -> None:
    """As in llama.cpp, SentencePiece and Gemma 3's own tokenizer.json: the longest one from the left."""
    values = pieces(**{"general.architecture": architecture, "tokenizer.ggml.add_space_prefix": False})
    texts, types = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    for spaces in (2, 3, 4, 5):
        if (text := SPACE * spaces) in texts:
            types[texts.index(text)] = USER_DEFINED
        else:
            texts.append(text)
            types.append(USER_DEFINED)
            values["tokenizer.ggml.scores"].append(-1000.0)
    path = write_gguf(tmp_path / "a.gguf", values, {})
    found = Tokenizer.from_str(json.dumps(tokenizer_of(read_gguf(path))))
    whole, rest = divmod(length, 5)
    expected = [SPACE * 5] * whole + ([SPACE * rest] if rest else [])
    assert found.encode(" " * length, add_special_tokens=False).tokens == expected


def test_first_and_last_tokens(tmp_path: Path) -> None:
    for more, expected in (
        ({}, [1]),
        ({"tokenizer.ggml.add_bos_token": False}, []),
        ({"tokenizer.ggml.add_eos_token": True}, [1, 2]),
    ):
        ours, _ = both(tmp_path / "a.gguf", pieces(**more))
        assert ours.encode("", add_special_tokens=True).ids == expected
    ours, _ = both(tmp_path / "a.gguf", shipped())
    assert ours.encode("", add_special_tokens=True).ids == []
    for pre in ("llama-bpe", "pixtral", "tekken"):
        ours, _ = both(tmp_path / "a.gguf", shipped() | {"tokenizer.ggml.pre": pre})
        assert ours.encode("", add_special_tokens=True).ids == [0]


def test_named_tokens_and_template(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", pieces(**{"tokenizer.chat_template": "{{ messages }}"}), {})
    assert tokenizer_config_of(read_gguf(path)) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": "{{ messages }}",
    }


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, r"tokenizer\.ggml\.model: 'bert' is not supported"),
        ({"tokenizer.ggml.tokens": []}, r"tokenizer\.ggml\.tokens: a list of texts is needed"),
        ({"tokenizer.ggml.tokens": ["a" * 10**6]}, r"tokenizer\.ggml\.tokens: one has 1000000 characters"),
        (
            {
                "tokenizer.ggml.tokens": ["a" * length for length in range(1, 601)],
                "tokenizer.ggml.token_type": [1] * 600,
                "tokenizer.ggml.scores": [0.0] * 600,
            },
            r"tokenizer\.ggml\.tokens: 600 tokens with 180300 characters have too many merges",
        ),
        ({"tokenizer.ggml.scores": [1.0]}, r"tokenizer\.ggml\.scores: 1, but there are"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, r"tokenizer\.ggml\.bos_token_id: 1000000, but there are"),
    ],
)
def test_wrong_values(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    path = write_gguf(tmp_path / "a.gguf", pieces() | more, {})
    with pytest.raises(FileError, match=message):
        tokenizer_of(read_gguf(path))


def test_an_unknown_split_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", shipped() | {"tokenizer.ggml.pre": "other"}, {})
    with pytest.raises(FileError, match=r"tokenizer\.ggml\.pre: 'other' is not supported"):
        tokenizer_of(read_gguf(path))


def test_a_template_for_functions_is_one_of_two(tmp_path: Path) -> None:
    templates = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "with functions"}
    path = write_gguf(tmp_path / "a.gguf", pieces(**templates), {})
    config = tokenizer_config_of(read_gguf(path))
    assert config["chat_template"] == {"default": "plain", "tool_use": "with functions"}
