"""Directories of Mistral, which may have the weights twice, or in a form of their own alone."""

import shutil
from pathlib import Path

import pytest

from gpu_worker.models.checkpoint import is_gguf
from gpu_worker.startup.fingerprint import weights_of
from ops.kv_memory import weights_bytes
from ops.model_directory.hub import HubError, fetched
from ops.model_directory.settings import SHIPPED_DRAFT
from ops.model_directory.weight_files import weight_files


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    shutil.copytree(SHIPPED_DRAFT, directory)
    return directory


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


def test_a_gguf_file_is_not_kept_from_being_read(model: Path) -> None:
    (model / "model.safetensors").rename(model / "consolidated.safetensors")
    (model / "model.gguf").write_bytes(b"")
    assert is_gguf(model)
