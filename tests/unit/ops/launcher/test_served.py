"""Models that `quire up` is asked to serve, and their names."""

import json
import os
from pathlib import Path

import pytest

from ops.launcher.served import Served, adapters_asked_for, asked_for, check_adapters, check_models
from ops.model_directory.settings import SHIPPED_MODEL
from ops.model_directory.weight_files import INDEX
from ops.runtime.errors import UsageError


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIRE_MODEL", "QUIRE_MODEL_NAME", "QUIRE_LORA_MODULES"):
        monkeypatch.delenv(name, raising=False)


def test_a_model_has_its_own_name_or_the_one_that_it_is_given(tmp_path: Path) -> None:
    for text, path, name in (
        ("~/models/llama", "~/models/llama", "llama"),
        ("fast=~/models/llama", "~/models/llama", "fast"),
        ("org/name@main", "org/name@main", "name"),
        ("fast=org/name", "org/name", "fast"),
        ("a b=c", "a b=c", "a b=c"),
    ):
        served = Served.parse(text)
        assert (str(served.path), served.name) == (path, name)
    odd = tmp_path / "temperature=0"
    odd.mkdir()
    assert Served.parse(str(odd)).path == odd


def test_what_is_served_where_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(one.path, one.name) for one in asked_for([])] == [(SHIPPED_MODEL, "quire-tiny")]
    monkeypatch.setenv("QUIRE_MODEL", "llama")
    monkeypatch.setenv("QUIRE_MODEL_NAME", "mine")
    assert [(str(one.path), one.name) for one in asked_for([])] == [("llama", "mine")]
    assert [one.name for one in asked_for(["x=llama"])] == ["x"]
    with pytest.raises(UsageError, match="QUIRE_MODEL_NAME=mine"):
        asked_for(["llama", "mistral"])


def test_of_several_each_has_a_name_of_its_own() -> None:
    check_models([Served(), Served(given="two")])
    check_models([Served(given="a name: of one model")])
    with pytest.raises(UsageError, match="'quire-tiny' is the name of several models: --model NAME=MODEL"):
        check_models([Served(), Served()])
    with pytest.raises(UsageError, match="is no name"):
        check_models([Served(), Served(given="a b")])


def test_a_pointer_is_no_model(tmp_path: Path) -> None:
    """A clone without Git LFS has them in place of large files."""
    shards = ("model-1.safetensors", "model-2.safetensors")
    for name in ("config.json", *shards, "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": dict(zip("ab", shards, strict=True))}))
    Served(tmp_path).check()
    (tmp_path / "consolidated.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    Served(tmp_path).check()  # that file is not read
    (tmp_path / "model-2.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    )
    with pytest.raises(UsageError, match=r"model-2\.safetensors: a pointer of Git LFS.*`git lfs pull`"):
        Served(tmp_path).check()
    (tmp_path / "model-2.safetensors").unlink()
    os.mkfifo(tmp_path / "model-2.safetensors")
    with pytest.raises(UsageError, match=r"model-2\.safetensors: no file"):
        Served(tmp_path).check()
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(UsageError, match=r"it has no model-2\.safetensors"):
        Served(tmp_path).check()
    (tmp_path / "model.gguf").write_text("")
    (tmp_path / "config.json").write_text('{"made_of": "gguf"}')
    (tmp_path / INDEX).write_text("[]")
    with pytest.raises(UsageError, match=r"is not a JSON object"):
        Served(tmp_path).check()
    (tmp_path / INDEX).unlink()
    Served(tmp_path).check()  # model-1.safetensors alone is not read
    (tmp_path / "model.gguf").unlink()
    with pytest.raises(UsageError, match=r"it has no model\.safetensors"):
        Served(tmp_path).check()


def test_a_model_with_pickles_alone_is_told_from_one_without_weights(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "pytorch_model.bin"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match=r"weights only as pickles \(pytorch_model\.bin\)"):
        Served(tmp_path).check()
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    with pytest.raises(UsageError, match=r"it has no model-1\.safetensors"):
        Served(tmp_path).check()


def test_adapters_are_named_by_the_option_or_else_by_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert adapters_asked_for([]) == {}
    monkeypatch.setenv("QUIRE_LORA_MODULES", "sql=a poet=b")
    assert adapters_asked_for([]) == {"sql": Path("a"), "poet": Path("b")}
    assert adapters_asked_for(["x=c"]) == {"x": Path("c")}
    with pytest.raises(UsageError, match="--lora-modules: 'x' is not NAME=DIRECTORY"):
        adapters_asked_for(["x"])
    monkeypatch.setenv("QUIRE_LORA_MODULES", "sql")
    with pytest.raises(UsageError, match="QUIRE_LORA_MODULES: 'sql' is not NAME=DIRECTORY"):
        adapters_asked_for([])


def test_adapters_that_cannot_be_served(tmp_path: Path) -> None:
    one, two = Served(given="one"), Served(given="two")
    check_adapters({}, (one, two))
    with pytest.raises(UsageError, match="of several models"):
        check_adapters({"sql": tmp_path}, (one, two))
    with pytest.raises(UsageError, match="is not a LoRA adapter"):
        check_adapters({"sql": tmp_path}, (one,))
    (tmp_path / "adapter_config.json").touch()
    check_adapters({"sql": tmp_path}, (one,))
    with pytest.raises(UsageError, match="'one' is the name of the model"):
        check_adapters({"one": tmp_path}, (one,))
