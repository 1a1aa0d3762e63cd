"""GGUF files as model directories, as all services take them."""

import json
import os
from pathlib import Path

import pytest

from gpu_worker.errors import ModelError
from gpu_worker.models.checkpoint import open_checkpoint
from gpu_worker.startup.fingerprint import weights_of
from ops.kv_memory import ModelFilesError, loaded_bytes, weights_bytes
from ops.launcher.served import Served
from ops.model_directory.files import FileError
from ops.model_directory.gguf.directory import as_directory, gguf_of
from ops.model_directory.gguf.file import read_gguf
from ops.model_directory.hub import HubError, fetched, model_name
from ops.runtime.errors import UsageError
from tests.support.gguf import random_blocks, tokens, write_gguf
from tests.unit.ops.model_directory.gguf.test_config import SIZES
from tokenizer_svc.model.tokenizer import TextModel


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    values = {f"llama.{key}": value for key, value in SIZES.items()}
    embedding = random_blocks("Q8_0", 97, 64).numpy().tobytes()
    (tmp_path / "models").mkdir()
    every = {
        "general.architecture": "llama",
        **values,
        **tokens(97),
        "tokenizer.chat_template": "{{ messages }}",
    }
    return write_gguf(
        tmp_path / "models" / "Fox-Q8_0.gguf", every, {"token_embd.weight": (8, (97, 64), embedding)}
    )


def test_all_services_find_what_they_read(file: Path) -> None:
    directory = fetched(file)
    Served(directory).check()
    text = TextModel.load(directory)
    assert text.vocab_size == 97
    assert text.end_tokens == (1,)
    assert text.template == "{{ messages }}"
    assert text.encode("#%", special=True) == [2, 4]
    with open_checkpoint(directory) as checkpoint:
        assert checkpoint.names() == {"model.embed_tokens.weight.Q8_0"}
    assert weights_bytes(directory) == 97 * 68
    assert loaded_bytes(directory) == 97 * 64 * 2
    assert model_name(file) == model_name(directory) == "Fox-Q8_0"


def test_whoever_waits_for_the_tokenizer_is_told(file: Path) -> None:
    """Of Gemma's 262,144 tokens it takes 5 s, and more where others compute."""
    told: list[str] = []
    assert fetched(file, told.append) == fetched(file, told.append)
    assert told == [f"read    configuration and tokenizer of {file}, once"]


@pytest.mark.parametrize(("number", "ways"), [(None, "lasttoken"), (1, "mean"), (2, "cls")])
def test_embeddings_are_pooled_as_the_file_says(file: Path, number: int | None, ways: str) -> None:
    values = read_gguf(file).values | ({} if number is None else {"llama.pooling_type": number})
    embedding = random_blocks("Q8_0", 97, 64).numpy().tobytes()
    write_gguf(file, values, {"token_embd.weight": (8, (97, 64), embedding)})
    assert TextModel.load(fetched(file)).pooling_ways.kinds == (ways,)


def test_it_is_made_once_for_a_file(file: Path) -> None:
    directory = fetched(file)
    (directory / "mark").touch()
    before = weights_of(directory)
    assert fetched(file) == fetched(file.parent) == directory
    assert (directory / "mark").exists()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(0, 0))
    assert fetched(file) != directory
    assert weights_of(fetched(file)) != before


def test_a_directory_with_several_models(file: Path) -> None:
    (file.parent / "Owl.gguf").write_bytes(file.read_bytes())
    with pytest.raises(HubError, match=r"has 2 models \(Fox-Q8_0, Owl\): name one of its files"):
        fetched(file.parent)
    (file.parent / "config.json").touch()
    assert gguf_of(file.parent) is None
    assert gguf_of(file.parent / "Owl.gguf") == file.parent / "Owl.gguf"


@pytest.mark.parametrize("others", [[], ["Owl.gguf"]])
def test_another_configuration_beside_it_is_not_its_own(file: Path, others: list[str]) -> None:
    """llama.cpp permutes rows of queries and keys: with Hugging Face's config.json tokens would be wrong."""
    directory = fetched(file)
    for name in others:
        (file.parent / name).write_bytes(file.read_bytes())
    config = json.loads((directory / "config.json").read_text())
    del config["made_of"]
    (file.parent / "config.json").write_text(json.dumps(config))
    message = rf"^{file.parent}: config\.json is not of Fox-Q8_0\.gguf, .*: name the \.gguf file itself$"
    with pytest.raises(HubError, match=message):
        fetched(file.parent)
    with pytest.raises(ModelError, match=message), open_checkpoint(file.parent):
        pass
    with pytest.raises(ModelFilesError, match=message):
        weights_bytes(file.parent)
    with pytest.raises(UsageError, match=message):
        Served(file.parent).check()
    assert fetched(file) == fetched(directory) == directory


def test_a_split_file_in_the_cache_of_the_hub(file: Path, tmp_path: Path) -> None:
    """Where the parts are links to files that have other names."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    embedding = random_blocks("Q8_0", 97, 64).numpy().tobytes()
    for number, name in enumerate(("token_embd", "output")):
        split = {"split.no": number, "split.count": 2, "split.tensors.count": 2}
        values = split if number else {**read_gguf(file).values, **split}
        tensors = {f"{name}.weight": (8, (97, 64), embedding)}
        blob = write_gguf(tmp_path / f"{number:064}", values, tensors)
        (snapshot / f"Fox-{number + 1:05}-of-00002.gguf").symlink_to(blob)
    directory = fetched(snapshot)
    assert weights_bytes(directory) == 2 * 97 * 68
    with open_checkpoint(directory) as checkpoint:
        assert checkpoint.names() == {f"{name}.weight.Q8_0" for name in ("model.embed_tokens", "lm_head")}


def test_a_blob_of_ollama(file: Path) -> None:
    """It has no suffix, and beside the language model's tensors those of encoders of images and sounds."""
    content = random_blocks("Q8_0", 97, 64).numpy().tobytes()
    names = ("token_embd.weight", "v.blk.0.attn_q.weight", "mm.mm_input_projection.weight", "a.conv1.weight")
    blob = file.parent / f"sha256-{7:064x}"
    write_gguf(blob, read_gguf(file).values, dict.fromkeys(names, (8, (97, 64), content)))
    directory = fetched(blob)
    assert (directory / f"{blob.name}.gguf").resolve() == blob
    assert model_name(blob) == model_name(directory) == blob.name
    Served(directory).check()
    assert TextModel.load(directory).vocab_size == 97
    with open_checkpoint(directory) as checkpoint:
        assert checkpoint.names() == {"model.embed_tokens.weight.Q8_0"}
        assert checkpoint.left == 3
    for content in (b"", b"GGU", b"PK\3\4"):
        blob.write_bytes(content)
        assert gguf_of(blob) is None


def test_a_wrong_file_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = as_directory(file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HubError, match=rf"{file}: the file is truncated: "):
        fetched(file)
    with (
        pytest.raises(ModelError, match=rf"{directory / file.name}: the file is truncated: "),
        open_checkpoint(directory),
    ):
        pass


def test_a_cache_that_cannot_be_written(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    with pytest.raises(FileError, match="its configuration cannot be kept"):
        as_directory(file)
