import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from tokenizer_svc.errors import ModelDirectoryError
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.settings import TokenizerSettings


def directory(model: TextModel, path: Path, **files: Any) -> Path:
    model.tokenizer.save(str(path / "tokenizer.json"))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


def test_begin_token_as_the_post_processor_has_it(byte_level: TextModel) -> None:
    assert byte_level.encode("a", special=True)[0] == 0
    assert byte_level.encode("a", special=False)[0] != 0
    assert byte_level.encode("", special=False) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config": {"eos_token_id": [3, 5]}, "config": {"eos_token_id": 7}}, (3, 5)),
        ({"generation_config": {"eos_token_id": 0}}, (0,)),
        ({"generation_config": {}, "config": {"eos_token_id": 7}}, (7,)),
        ({"config": {"text_config": {"eos_token_id": [8]}}}, (8,)),
        (
            {
                "config": {"text_config": None, "eos_token_id": None},
                "generation_config": {"eos_token_id": []},
            },
            (),
        ),
        # A token without a row in the model ends nothing.
        ({"config": {"vocab_size": 300, "eos_token_id": [300, 8]}}, (8,)),
        ({"tokenizer_config": {"eos_token": "</s>"}}, (1,)),
        ({"tokenizer_config": {"eos_token": {"content": "</s>", "special": True}}}, (1,)),
        ({}, ()),
    ],
)
def test_end_tokens(
    byte_level: TextModel, tmp_path: Path, files: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert TextModel.load(directory(byte_level, tmp_path, **files)).end_tokens == expected


def test_the_vocabulary_is_the_model_s(byte_level: TextModel, tmp_path: Path) -> None:
    assert byte_level.vocab_size == byte_level.tokenizer.get_vocab_size()
    assert TextModel.load(directory(byte_level, tmp_path, config={"vocab_size": 512})).vocab_size == 512
    within = {
        "vocab_size": 500,
        "text_config": {"vocab_size": 512},
    }  # as in a model that sees, which embeds 512
    assert TextModel.load(directory(byte_level, tmp_path, config=within)).vocab_size == 512


def test_what_training_left_behind_is_off(byte_level: TextModel, tmp_path: Path) -> None:
    copy = Tokenizer.from_str(byte_level.tokenizer.to_str())
    copy.enable_truncation(2)
    copy.enable_padding(length=8)
    copy.save(str(tmp_path / "tokenizer.json"))
    assert TextModel.load(tmp_path).encode("abc", special=True) == byte_level.encode("abc", special=True)


def test_directories_that_are_none(byte_level: TextModel, tmp_path: Path) -> None:
    with pytest.raises(ModelDirectoryError, match="not a directory"):
        TextModel.load(tmp_path / "absent")
    with pytest.raises(ModelDirectoryError, match="it has no tokenizer"):
        TextModel.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelDirectoryError, match="is not a tokenizer"):
        TextModel.load(tmp_path)
    directory(byte_level, tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelDirectoryError, match="is not JSON"):
        TextModel.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("tokenizer.json", "[" * 10**6, "is not a tokenizer: "),
        ("tokenizer.json", '{"model": ' * 10**5, "is not a tokenizer: "),
        ("config.json", "[" * 10**6, "nested too deeply"),
        ("config.json", '{"vocab_size": 1000000000000000}', "vocab_size: 1000000000000000 is more than"),
        ("generation_config.json", '{"a":' * 10**5, "nested too deeply"),
        ("tokenizer_config.json", '{"eos_token": "\\ud800"}', "eos_token: half of a character"),
    ],
)
def test_files_that_are_meant_to_break_it_are_one_line(
    byte_level: TextModel, tmp_path: Path, file: str, content: str, what: str
) -> None:
    directory(byte_level, tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(ModelDirectoryError, match=what) as refused:
        TextModel.load(tmp_path)
    assert file in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_tokenizer_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as sparse:
        sparse.truncate(2**40)
    with pytest.raises(ModelDirectoryError, match="1099511627776 bytes are too many"):
        TextModel.load(tmp_path)


def test_a_decoder_that_needs_neighbours_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelDirectoryError, match="WordPiece"):
        TextModel.load(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    assert TextModel.load(tmp_path).bidirectional  # it writes no text


def test_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("QUIRE_MODEL", "/models/Some-1B/")
    assert TokenizerSettings.from_environment().served_name == "Some-1B"
    monkeypatch.setenv("QUIRE_MODEL_NAME", "some")
    assert TokenizerSettings.from_environment().served_name == "some"
    monkeypatch.setenv("QUIRE_TOKENIZER_CALLS", "none")
    with pytest.raises(SystemExit):
        TokenizerSettings.from_environment()
    assert "QUIRE_TOKENIZER_CALLS=none" in capsys.readouterr().err


def test_a_long_text_leaves_the_interpreter_to_others(byte_level: TextModel) -> None:
    """Encoding off the event loop helps only if it does not hold the interpreter lock meanwhile."""
    turns = 0
    text = "the lazy dog " * 20_000
    worker = threading.Thread(target=byte_level.encode, args=(text, False))
    worker.start()
    while worker.is_alive():
        worker.join(0.001)
        turns += 1
    assert turns > 5
