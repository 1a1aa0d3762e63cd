"""Which tokens end an answer, for the tokenizer service and the worker's grammars alike."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ops.model_directory.end_tokens import end_tokens_in
from ops.model_directory.files import FileError
from ops.model_directory.settings import SHIPPED_MODEL
from tokenizer_svc.model.tokenizer import TextModel

END = 4


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 7}, [5, 6]),
        ({}, {"eos_token_id": 7, "text_config": {"eos_token_id": 8}}, [7]),
        ({"eos_token_id": []}, {"text_config": {"eos_token_id": [8, 9]}}, [8, 9]),
        (None, {"eos_token_id": None, "text_config": 7}, []),
        (None, None, []),
    ],
)
def test_which_tokens_end_an_answer(
    tmp_path: Path, generation: object, config: object, ends: list[int]
) -> None:
    for name, content in (("generation_config", generation), ("config", config)):
        if content is not None:
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
    assert end_tokens_in(tmp_path) == ends


@pytest.mark.parametrize("named", ["</s>", {"__type": "AddedToken", "content": "</s>"}, "<|none|>", None])
def test_the_tokenizers_own_end_token(tmp_path: Path, named: object) -> None:
    shutil.copy(SHIPPED_MODEL / "tokenizer.json", tmp_path)
    end = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).id_to_token(END)
    named = json.loads(json.dumps(named).replace("</s>", end))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": named}))
    model = TextModel.load(tmp_path)
    assert end_tokens_in(tmp_path) == list(model.end_tokens) == ([END] if end in str(named) else [])


def test_an_end_token_that_no_token_is(tmp_path: Path) -> None:
    """Of a tokenizer.json without added tokens."""
    content = json.loads((SHIPPED_MODEL / "tokenizer.json").read_text())
    del content["added_tokens"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|none|>"}))
    assert end_tokens_in(tmp_path) == []
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "a"}))
    assert end_tokens_in(tmp_path) == [content["model"]["vocab"]["a"]]
    content["model"] = {"vocab": [["<unk>", 0.0], ["a", -1.0]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert end_tokens_in(tmp_path) == [1]


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("listed", [7, [7, 9], [9, END]])
def test_the_tokenizers_own_end_token_ends_answers_beside_others(
    tmp_path: Path, file: str, listed: int | list[int]
) -> None:
    """As of a model tuned for chats, whose generation_config.json is that of its base model."""
    shutil.copy(SHIPPED_MODEL / "tokenizer.json", tmp_path)
    end = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).id_to_token(END)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    (tmp_path / file).write_text(json.dumps({"eos_token_id": listed}))
    first = listed if isinstance(listed, list) else [listed]
    expected = first if END in first else [*first, END]
    assert end_tokens_in(tmp_path) == list(TextModel.load(tmp_path).end_tokens) == expected


@pytest.mark.parametrize("wrong", ["</s>", True, -1, [1.5], {}])
def test_what_is_no_token_is_refused(tmp_path: Path, wrong: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": wrong}))
    with pytest.raises(FileError, match=r"eos_token_id: .* is not a token id or a list of them"):
        end_tokens_in(tmp_path)
