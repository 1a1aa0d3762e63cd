"""Directories with tekken.json alone, beside transformers' conversion and a plain algorithm."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers.integrations.mistral.tokenizer import MistralConverter

from ops.model_directory import tokenizer_json
from ops.model_directory.hub import HubError, fetched
from ops.model_directory.vision import read_vision
from ops.model_directory.vision.sizes import EdgeVision
from tests.support.byte_tokens import TEXTS, plainly, trained
from tests.support.tekken import COUNT, NEW, PATTERN, SPECIAL, tekken
from tokenizer_svc.formats.formats import Formats
from tokenizer_svc.model.tokenizer import TextModel

SEES = {"architectures": ["Mistral3ForConditionalGeneration"], "vision_config": {"patch_size": 14}}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(tmp_path: Path, content: Any, **files: Any) -> Path:
    """A model directory with tekken.json and some more files of JSON."""
    directory = tmp_path / "small"
    directory.mkdir()
    (directory / "tekken.json").write_text(json.dumps(content))
    for name, each in {"config": {"eos_token_id": 2}, **files}.items():
        (directory / f"{name}.json").write_text(json.dumps(each))
    return directory


@pytest.mark.parametrize(
    ("version", "special"),
    [("v3", None), ("v7", None), ("v11", SPECIAL + NEW[:2]), ("v13", SPECIAL + NEW)],
)
def test_tokens_are_those_of_mistral(tmp_path: Path, version: str, special: list[str] | None) -> None:
    given = tekken(version, special)
    directory = written(tmp_path, given)
    model = TextModel.load(fetched(directory))
    ranks = {token: rank for rank, token in enumerate(trained()[:-50])}
    assert model.vocab_size == COUNT + len(ranks)
    for text in [*TEXTS, *Path(__file__).read_text().splitlines(keepends=True)]:
        if not any(mark in text for mark in (*SPECIAL, *NEW, "<SPECIAL_")):
            tokens = [COUNT + rank for rank in plainly(ranks, PATTERN, text)]
            assert model.encode(text, special=True) == [1, *tokens], text
            assert b"".join(model.plain_tokens[token] for token in tokens) == text.encode()
    # Without `special_tokens` transformers needs a library of Mistral's.
    given["special_tokens"] = tekken(version, special or SPECIAL)["special_tokens"]
    (directory / "tekken.json").write_text(json.dumps(given))
    theirs = MistralConverter(str(directory / "tekken.json")).converted()
    for text in (*TEXTS, "<s>[INST] a[/INST]b</s> <SPECIAL_39>[TOOL_CALLS][", *(special or SPECIAL)):
        assert model.encode(text, special=False) == theirs.encode(text).ids, text
    assert {*model.special_tokens} == {token.content for token in theirs.get_added_tokens_decoder().values()}
    assert model.special_tokens["<SPECIAL_39>"] == 39


@pytest.mark.parametrize(
    ("version", "special", "calls", "thoughts"),
    [
        ("v7", None, "mistral", "none"),
        ("v11", SPECIAL + NEW[:2], "mistral_args", "none"),
        ("v13", SPECIAL + NEW[:2], "mistral_args", "none"),
        ("v13", SPECIAL + NEW, "mistral_args", "magistral"),
    ],
)
def test_the_template_tells_of_calls_and_thoughts(
    tmp_path: Path, version: str, special: list[str] | None, calls: str, thoughts: str
) -> None:
    model = TextModel.load(fetched(written(tmp_path, tekken(version, special))))
    formats = Formats(model)
    assert (formats.call_name, formats.thought_name) == (calls, thoughts)
    assert model.named_tokens["bos_token"] == "<s>"
    assert model.end_tokens == (2,)


def test_what_the_directory_has_counts_first(tmp_path: Path) -> None:
    own = {"bos_token": "[INST]", "chat_template": "own"}
    directory = written(tmp_path, tekken("v13", SPECIAL + NEW), tokenizer_config=own)
    found = TextModel.load(fetched(directory))
    assert (found.named_tokens["bos_token"], found.template) == ("[INST]", "own")
    (directory / "tokenizer_config.json").unlink()
    (directory / "chat_template.json").write_text('{"chat_template": "a file of its own"}')
    found = TextModel.load(fetched(directory))
    assert (found.named_tokens["bos_token"], found.template) == ("<s>", "a file of its own")
    (directory / "tokenizer.json").write_text("{}")
    assert fetched(directory) == directory


def test_merges_that_would_take_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_json, "MOST_CUT", 1000)
    with pytest.raises(HubError, match=r"/tekken.json: \d+ tokens with \d+ characters have too many merges$"):
        fetched(written(tmp_path, tekken("v7", None)))


@pytest.mark.parametrize("version", ["v3", "v99"])
def test_other_versions_have_no_template(tmp_path: Path, version: str) -> None:
    assert TextModel.load(fetched(written(tmp_path, tekken(version, SPECIAL)))).template is None


@pytest.mark.parametrize("version", ["v11", "v13"])
def test_sizes_of_images_are_in_the_file(tmp_path: Path, version: str) -> None:
    directory = written(tmp_path, tekken(version, SPECIAL + NEW), config=SEES | {"image_token_index": 10})
    assert read_vision(fetched(directory), 4096) == EdgeVision(10, 28, 560)
    assert TextModel.load(fetched(directory), 4096).images is not None
    (directory / "preprocessor_config.json").write_text('{"size": {"longest_edge": 280}}')
    assert read_vision(fetched(directory), 4096) == EdgeVision(10, 28, 280)


def changed(*path: str | int, value: Any) -> Callable[[Any], None]:
    """Changes one value, or takes it away if the new one is None."""

    def change(given: Any) -> None:
        *before, last = path
        for key in before:
            given = given[key]
        if value is None:
            del given[last]
        else:
            given[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("config", value=None), "there is no 'config'"),
        (changed("config", value=[]), "list indices"),
        (changed("config", "pattern", value=5), "pattern: no expression of at most 4096"),
        (changed("config", "pattern", value="a" * 5000), "pattern: no expression of at most 4096"),
        (changed("config", "version", value=[1]), "unhashable type"),
        (changed("config", "default_num_special_tokens", value=10**9), "1000000000 is no whole number"),
        (changed("config", "default_num_special_tokens", value="40"), "40 is no whole number from 1 to"),
        (changed("config", "default_num_special_tokens", value=5), "24 different texts, but 5 tokens"),
        (changed("config", "default_vocab_size", value=10**12), "1000000000000 is no whole number"),
        (changed("config", "default_vocab_size", value=100), "no token is the byte"),
        (changed("special_tokens", value=None), "there is no 'special_tokens'"),
        (changed("special_tokens", value=7), "not iterable"),
        (changed("special_tokens", 3, "rank", value=4), "their ranks are not 0, 1, 2"),
        (changed("special_tokens", 3, "token_str", value="<s>"), "39 different texts, but 40 tokens"),
        (changed("special_tokens", 3, "token_str", value=""), "39 different texts, but 40 tokens"),
        (changed("special_tokens", 1, "token_str", value="<bos>"), "there is no <s>"),
        (changed("special_tokens", 3, "token_str", value="\ud800"), "half of a character"),
        (changed("special_tokens", 3, "token_str", value="a"), "is a special token, too"),
        (changed("vocab", value={}), "vocab: no list"),
        (changed("vocab", 5, "rank", value=7), "vocab: token 5: the rank is 7, not 5"),
        (changed("vocab", 5, value=None), "vocab: token 5: the rank is 6, not 5"),
        (changed("vocab", 5, "token_bytes", value="@"), "vocab: token 5: "),
        (changed("vocab", 5, "token_bytes", value="é"), "vocab: token 5: "),
        (changed("vocab", 5, "token_bytes", value=3), "vocab: token 5: "),
        (changed("vocab", 5, "token_bytes", value=None), "vocab: token 5: 'token_bytes'"),
        (changed("vocab", 300, "token_bytes", value="QUFB" * 1000), "3000 bytes are too many"),
        (changed("vocab", 1, "token_bytes", value="IQ=="), "vocab: token 1: the token is empty, or was"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    given = tekken("v13", SPECIAL + NEW)
    change(given)
    directory = written(tmp_path, given)
    with pytest.raises(HubError) as error:
        fetched(directory)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(directory) in str(error.value)
