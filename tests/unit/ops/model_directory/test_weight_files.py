"""Which files of a directory have the weights, and what is said of Mistral's own form of a model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.errors import ModelError
from gpu_worker.models.checkpoint import is_gguf
from gpu_worker.startup.fingerprint import weights_of
from ops.kv_memory import weights_bytes
from ops.model_directory.files import FileError
from ops.model_directory.hub import HubError, fetched
from ops.model_directory.settings import SHIPPED_DRAFT
from ops.model_directory.weight_files import GGUF, INDEX, MADE_OF, SINGLE, named_files, weight_files


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    shutil.copytree(SHIPPED_DRAFT, directory)
    return directory


def mark_as_gguf(model: Path) -> None:
    """As a directory is that was made of a GGUF file."""
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {MADE_OF: GGUF}))
    (model / "model.gguf").write_bytes(b"")


def test_weights_that_are_there_twice_count_once(model: Path) -> None:
    stored, hashed = weights_bytes(model), weights_of(model)
    shutil.copy(model / "model.safetensors", model / "consolidated.safetensors")
    (model / "params.json").write_text("{}")
    assert fetched(model) == model
    assert weight_files(model) == [model / "model.safetensors"]
    assert weights_bytes(model) == stored
    assert weights_of(model) == hashed


@pytest.mark.parametrize(
    ("taken", "named"),
    [
        (("model.safetensors",), "consolidated-00001.safetensors"),
        (("model.safetensors", "config.json"), "consolidated-00001.safetensors"),
        (("config.json",), "params.json"),
    ],
)
def test_the_other_form_alone_is_refused(model: Path, taken: tuple[str, ...], named: str) -> None:
    shutil.copy(model / "model.safetensors", model / "consolidated-00001.safetensors")
    (model / "params.json").write_text("{}")
    for name in taken:
        (model / name).unlink()
    with pytest.raises(HubError, match=rf"^{model}: Mistral's own form of a model \({named}\) is not read: "):
        fetched(model)


def test_files_that_are_not_read_do_not_count(model: Path) -> None:
    """As another program may have fetched them into the same cache."""
    stored, hashed = weights_bytes(model), weights_of(model)
    for name in ("model.fp16.safetensors", "adapter_model.safetensors"):
        shutil.copy(model / "model.safetensors", model / name)
    assert weights_of(model) == hashed
    assert weights_bytes(model) == stored
    (model / "model.safetensors").unlink()
    mark_as_gguf(model)
    assert is_gguf(model)


def test_an_index_that_cannot_be_read_is_one_line(model: Path) -> None:
    (model / INDEX).write_text("[")
    (model / "model.gguf").write_bytes(b"")
    with pytest.raises(ModelError, match=rf"^{model / INDEX} is not JSON: "):
        is_gguf(model)


def test_a_gguf_file_is_not_kept_from_being_read(model: Path) -> None:
    (model / "model.safetensors").rename(model / "consolidated.safetensors")
    mark_as_gguf(model)
    assert is_gguf(fetched(model))


def test_who_needs_no_weights_does_not_miss_them(model: Path) -> None:
    """A cache of the Hub may have Mistral's form from another program, before a worker fetches the rest."""
    (model / "model.safetensors").rename(model / "consolidated.safetensors")
    assert fetched(model, weights=False) == model


def test_each_file_once(tmp_path: Path) -> None:
    assert named_files(tmp_path) == [SINGLE]
    named = {"a": "outside.safetensors", "b": "model.safetensors-00001-of-00002.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": named | {"c": "outside.safetensors"}}))
    assert named_files(tmp_path) == sorted(named.values())
    assert weight_files(tmp_path) == []
    (tmp_path / "outside.safetensors").touch()
    assert weight_files(tmp_path) == [tmp_path / "outside.safetensors"]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([], "is not a JSON object"),
        ({}, "weight_map: an object that is not empty is needed"),
        ({"weight_map": {}}, "weight_map: an object that is not empty is needed"),
        ({"weight_map": {"a": "../model.safetensors"}}, "is not a file of safetensors beside it"),
        ({"weight_map": {"a": "parts/model.safetensors"}}, "is not a file of safetensors beside it"),
        ({"weight_map": {"a": "a\n.safetensors"}}, r"'a\\n\.safetensors' is not a file"),
        ({"weight_map": {"a": "\ud800.safetensors"}}, "is not a file of safetensors beside it"),
        ({"weight_map": {"a": "é" * 122 + ".safetensors"}}, "is not a file of safetensors beside it"),
        ({"weight_map": {"a": "model.bin", "b": "one.safetensors"}}, "'model.bin' is not a file"),
        ({"weight_map": {"a": 3}}, "'3' is not a file"),
    ],
)
def test_what_is_no_index_is_refused(tmp_path: Path, index: Any, message: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(FileError, match=message):
        named_files(tmp_path)
