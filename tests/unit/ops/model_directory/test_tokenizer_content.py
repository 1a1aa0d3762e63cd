"""Tokens that only the files beside a tokenizer.json mark, against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Sequence
from tokenizers.models import BPE, Unigram
from transformers import PreTrainedTokenizerFast

from ops.model_directory.files import FileError
from ops.model_directory.grammars import Vocabulary
from ops.model_directory.tokenizer_content import tokenizer_content

PIECES = ["<unk>", "<s>", "</s>", "<t>", *"abc ", "<turn>", "<end>"]
NUMBERED = {text: number for number, text in enumerate(PIECES)}


def listed(text: str, special: bool = True, **flags: bool) -> dict[str, Any]:
    usual = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": text, "special": special, **usual, **flags}


CONFIGS = {
    "nothing": {},
    "the same": {"eos_token": "</s>", "added_tokens_decoder": {"2": listed("</s>")}},
    "a flag": {"eos_token": "<end>", "added_tokens_decoder": {"9": listed("<end>"), "2": listed("</s>")}},
    "a flag of spaces": {"added_tokens_decoder": {"9": listed("<end>", special=False, rstrip=True)}},
    "tokens of the vocabulary": {
        "bos_token": "<s>",
        "unk_token": {"__type": "AddedToken", "content": "<unk>"},
        "added_tokens_decoder": {"8": listed("<turn>"), "3": listed("<t>", special=False)},
    },
    "named alone": {"bos_token": "<s>", "eos_token": "<end>", "additional_special_tokens": ["<turn>"]},
    "named, and listed as no special one": {
        "eos_token": "<end>",
        "added_tokens_decoder": {"9": listed("<end>", special=False, rstrip=True)},
    },
    "named, and listed as it was": {
        "eos_token": "<end>",
        "added_tokens_decoder": {"9": listed("<end>", special=False)},
    },
    "named with a flag": {"mask_token": {"__type": "AddedToken", **listed("<turn>", lstrip=True)}},
    "tokens beyond": {"added_tokens_decoder": {"11": listed("<more>", special=False), "10": listed("<new>")}},
}
TEXTS = ["a<s>b", "a <turn>a<end> b", "<unk><t>c", "a<new>b<more>", "</s> a", "ab"]


def write(directory: Path, config: dict[str, Any], model: Any = None) -> None:
    """A tokenizer.json with two added tokens, one of them special, and a tokenizer_config.json."""
    tokenizer = Tokenizer(model or BPE(NUMBERED, [], unk_token="<unk>"))
    tokenizer.add_tokens([AddedToken("</s>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<end>", special=False, normalized=False)])
    tokenizer.decoder = Sequence([ByteFallback(), Fuse()])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("model", ["pairs", "unigram"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_tokens_are_those_of_transformers(tmp_path: Path, config: dict[str, Any], model: str) -> None:
    write(tmp_path, config, Unigram([(text, -1.0) for text in PIECES], 0) if model == "unigram" else None)
    check(tmp_path)


def check(directory: Path) -> None:
    """The tokens are those of transformers."""
    source, content = tokenizer_content(directory)
    mine, theirs = Tokenizer.from_str(source), PreTrainedTokenizerFast.from_pretrained(directory)
    assert json.loads(source) == content
    flags = [
        {
            number: (one.content, one.special, one.lstrip, one.rstrip, one.single_word)
            for number, one in decoder.items()
        }
        for decoder in (mine.get_added_tokens_decoder(), theirs.added_tokens_decoder)
    ]
    assert flags[0] == flags[1]
    for text in TEXTS:
        ids = mine.encode(text, add_special_tokens=False).ids
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert mine.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_file_that_is_complete_stays_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, CONFIGS["the same"])
    assert tokenizer_content(tmp_path)[0] == (tmp_path / "tokenizer.json").read_text()


def test_a_token_that_has_no_place_is_left_out(tmp_path: Path) -> None:
    """Its id would be another token's, or it would have no row in the model."""
    write(tmp_path, {"pad_token": "<pad>", "added_tokens_decoder": {"3": listed("<p>"), "99": listed("<q>")}})
    added = tokenizer_content(tmp_path)[1]["added_tokens"]
    assert [one["content"] for one in added] == ["</s>", "<end>"]


def test_older_directories_name_tokens_in_another_file(tmp_path: Path) -> None:
    """It goes before tokenizer_config.json unless that lists tokens."""
    older = {"bos_token": "<s>", "mask_token": listed("<turn>", lstrip=True)}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(older))
    for listing in ({}, {"added_tokens_decoder": {"2": listed("</s>")}}):
        write(tmp_path, {"mask_token": "<turn>", **listing})
        check(tmp_path)
        added = tokenizer_content(tmp_path)[1]["added_tokens"]
        assert ("<s>" in [one["content"] for one in added]) is not bool(listing)


def test_grammars_have_such_tokens(tmp_path: Path) -> None:
    write(tmp_path, CONFIGS["tokens of the vocabulary"])
    vocabulary = Vocabulary(tmp_path, len(PIECES), [2])
    assert vocabulary.special == {"<unk>": 0, "<s>": 1, "</s>": 2, "<t>": 3, "<turn>": 8, "<end>": 9}


@pytest.mark.parametrize(
    "config", [{"added_tokens_decoder": {"x": listed("a")}}, {"added_tokens_decoder": [7]}]
)
def test_what_are_no_tokens(tmp_path: Path, config: dict[str, Any]) -> None:
    write(tmp_path, config)
    with pytest.raises(FileError, match="is not a tokenizer"):
        tokenizer_content(tmp_path)
