"""Which file of a directory its tokenizer is made of."""

import json
from pathlib import Path

import pytest

from ops.model_directory.files import FileError
from ops.model_directory.tokenizer_files.made import FILES, with_tokenizer
from tests.support.tekken import tekken


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "model"
    (directory / "1_Pooling").mkdir(parents=True)
    for name in FILES:
        (directory / name).write_text("broken")
    return directory


def test_what_mistral_publishes_counts_first(model: Path) -> None:
    (model / "tekken.json").write_text(json.dumps(tekken("v7", None)))
    made = with_tokenizer(model, "fox")
    assert {path.name for path in made.iterdir()} == {
        *(path.name for path in model.iterdir()),
        *("tokenizer.json", "tokenizer_config.json"),
    }
    assert made.name == "fox"
    assert (made / "1_Pooling").resolve() == model / "1_Pooling"


@pytest.mark.parametrize(
    ("taken", "named"),
    [
        ((), "tekken.json"),
        (("tekken.json",), "tokenizer_config.json"),
        (("tekken.json", "tiktoken.model"), "GPT2Tokenizer"),
        (("tekken.json", "tiktoken.model", "merges.txt"), "LlamaTokenizer"),
    ],
)
def test_what_counts_next_is_not_passed_over(model: Path, taken: tuple[str, ...], named: str) -> None:
    for name in taken:
        (model / name).unlink()
    if named == "tokenizer_config.json":
        (model / named).write_text("broken")
    with pytest.raises(FileError, match=named):
        with_tokenizer(model, "fox")


def test_hidden_files_change_nothing(model: Path) -> None:
    (model / "tekken.json").write_text(json.dumps(tekken("v7", None)))
    made = with_tokenizer(model, "fox")
    (model / ".git").mkdir()
    assert with_tokenizer(model, "fox") == made
    (model / "notes").mkdir()
    assert with_tokenizer(model, "fox") != made


def test_a_tokenizer_that_is_there_stays(model: Path) -> None:
    (model / "tokenizer.json").write_text("{}")
    assert with_tokenizer(model, "fox") == model


def test_a_directory_with_none_of_them_stays(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    assert with_tokenizer(tmp_path, "fox") == tmp_path
    assert with_tokenizer(tmp_path / "nowhere", "fox") == tmp_path / "nowhere"
