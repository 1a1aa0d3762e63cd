"""Directories with vocab.json and merges.txt, beside transformers' tokenizers of these classes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CodeGenTokenizer, GPT2Tokenizer, Qwen2Tokenizer

from ops.model_directory.hub import HubError, fetched
from tests.support.byte_tokens import TEXTS
from tokenizer_svc.model.tokenizer import TextModel

END = "<|endoftext|>"
CLASSES: dict[str, Any] = {
    "GPT2Tokenizer": GPT2Tokenizer,
    "CodeGenTokenizer": CodeGenTokenizer,
    "Qwen2Tokenizer": Qwen2Tokenizer,
}
PLAIN = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
MORE = [
    *TEXTS,
    " e\u0301 naïve",
    f"a{END}b <|im_start|>user\nx<|im_end|> <pad>",
    "it's 12345 IT'S",
    "\r\n \n",
]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator([Path(__file__).read_text(), *3 * MORE], trainer)
    directory = tmp_path / "old"
    directory.mkdir()
    trained = json.loads(tokenizer.to_str())["model"]
    (directory / "vocab.json").write_text(json.dumps(trained["vocab"] | {END: len(trained["vocab"])}))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in trained["merges"]), ""]
    (directory / "merges.txt").write_text("\n".join(lines))
    (directory / "config.json").write_text('{"model_type": "gpt2"}')
    return directory


def configured(model: Path, **config: Any) -> TextModel:
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    return TextModel.load(fetched(model))


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"add_prefix_space": True},
        {"add_bos_token": True, "bos_token": END},
        {"eos_token": {"__type": "AddedToken", "content": "<|im_end|>", **PLAIN}},
        {"additional_special_tokens": ["<|im_start|>"]},
        {"add_eos_token": True, "pad_token": "<pad>"},
    ],
)
def test_tokens_are_those_of_transformers(model: Path, name: str, config: dict[str, Any]) -> None:
    last = len(json.loads((model / "vocab.json").read_text()))
    names = ("<|im_start|>", "<|im_end|>", "<pad>")
    added = {str(last + place): {"content": text, **PLAIN} for place, text in enumerate(names)}
    added[str(last)]["special"] = True
    config |= {"added_tokens_decoder": added, "tokenizer_class": name}
    found = configured(model, **config)
    theirs = CLASSES[name].from_pretrained(model)
    for text in MORE:
        assert found.encode(text, special=True) == theirs(text).input_ids, text
    if "add_prefix_space" not in config:
        for text in TEXTS:
            tokens = found.encode(text, special=False)
            assert b"".join(found.plain_tokens[token] for token in tokens) == text.encode()
    special = {token.content for token in theirs.added_tokens_decoder.values() if token.special}
    assert {*found.special_tokens} == special >= {END, "<|im_start|>"}
    assert found.end_tokens == (theirs.eos_token_id,)


def test_older_files_name_tokens_too(model: Path) -> None:
    (model / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>"}')
    (model / "added_tokens.json").write_text('{"<|im_end|>": 2000, "<|extra|>": 1000}')
    found = configured(model, tokenizer_class="GPT2TokenizerFast")
    assert found.encode("<|im_end|>", special=True) == [2000]
    assert found.encode("a<|extra|>", special=True)[-1] == 1000
    assert "<|extra|>" not in found.special_tokens
    assert found.end_tokens == (2000,)
    assert found.template is None


def test_bytes_that_no_text_had_may_be_missing(model: Path) -> None:
    vocabulary = json.loads((model / "vocab.json").read_text())
    (model / "vocab.json").write_text(
        json.dumps({text: id_ for text, id_ in vocabulary.items() if text != "ó"})
    )
    found = configured(model, tokenizer_class="GPT2Tokenizer")
    theirs = GPT2Tokenizer.from_pretrained(model)
    assert found.encode("a\U000f0000b", special=True) == theirs("a\U000f0000b").input_ids


def rewritten(name: str, change: Callable[[str], str]) -> Callable[[Path], object]:
    return lambda model: (model / name).write_text(change((model / name).read_text()))


def with_config(**config: Any) -> Callable[[Path], object]:
    written = json.dumps({"tokenizer_class": "Qwen2Tokenizer"} | config)
    return lambda model: (model / "tokenizer_config.json").write_text(written)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            with_config(tokenizer_class="RoFormerTokenizer"),
            "'RoFormerTokenizer' without tokenizer.json is not",
        ),
        (with_config(tokenizer_class=["a"]), "tokenizer_class: ['a'] without"),
        (lambda model: (model / "tokenizer_config.json").unlink(), "tokenizer_class: None without"),
        (rewritten("vocab.json", lambda text: text.replace(": 5,", ": 6,")), "two tokens have the same id"),
        (rewritten("vocab.json", lambda text: text.replace(": 5,", ": 9e9,")), "9000000000.0 is no id"),
        (rewritten("vocab.json", lambda text: text.replace(": 5,", ": -1,")), "-1 is no id of a token"),
        (rewritten("vocab.json", lambda text: '{"a": 1}'), "vocab.json: no token is ' ' alone"),
        (rewritten("vocab.json", lambda text: "[]"), "is not a JSON object"),
        (rewritten("vocab.json", lambda text: '{"\\ud800": 990, ' + text[1:]), "half of a char"),
        (rewritten("merges.txt", lambda text: text + "a b c\n"), "'a b c' are not two tokens that make one"),
        (rewritten("merges.txt", lambda text: "#version\n\x01 a"), "line 2: '\\x01 a' are not two tokens"),
        (with_config(added_tokens_decoder=[1]), "not tokens with their texts and ids"),
        (with_config(added_tokens_decoder={"1e": {"content": "x"}}), "not tokens with their texts and ids"),
        (with_config(added_tokens_decoder={"7": {}}), "not tokens with their texts and ids"),
        (with_config(added_tokens_decoder={"7": {"content": "x"}}), "'x': token 7 is '"),
        (with_config(added_tokens_decoder={"999": {"content": END}}), f"'{END}': token 999 is "),
        (with_config(added_tokens_decoder={"9" * 30: {"content": "x"}}), "999 is no id of a token"),
        (with_config(added_tokens_decoder={"999": {"content": ""}}), "'': 999 is no id of a token"),
        (with_config(added_tokens_decoder={"999": {"content": 5}}), "'5': 999 is no id of a token"),
        (with_config(added_tokens_decoder={"999": {"content": [1]}}), "not tokens with their texts"),
    ],
)
def test_what_is_wrong_is_one_line(model: Path, change: Callable[[Path], object], message: str) -> None:
    with_config()(model)
    change(model)
    with pytest.raises(HubError) as error:
        fetched(model)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(model) in str(error.value)
