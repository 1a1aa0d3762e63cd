"""Files that their author made to break who reads them: each is one line that names what is wrong."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ops.model_directory.files import MOST_BYTES, FileError, read_config, read_json, read_text
from ops.model_directory.settings import SHIPPED_MODEL


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"num_hidden_layers": 1e10}', "num_hidden_layers: 10000000000.0 is more than 4096"),
        ('{"num_hidden_layers": 5000}', "num_hidden_layers: 5000 is more"),
        ('{"n_layer": 10000000000}', "n_layer: 10000000000 is more"),
        ('{"num_nextn_predict_layers": 1000000}', "num_nextn_predict_layers: 1000000 is more"),
        ('{"vocab_size": 1e15}', "vocab_size: 1000000000000000.0 is more than 2147483647"),
        ('{"vocab_size": NaN}', "vocab_size: nan is more"),
        ('{"head_dim": 1e999}', "head_dim: inf is more"),
        ('{"text_config": {"hidden_size": 1' + "0" * 4000 + "}}", "text_config.hidden_size: 1000"),
        ('{"layers": [{"num_key_value_heads": 4294967296}]}', "layers.num_key_value_heads: 4294967296"),
        ('{"hidden_size": 1' + "0" * 5000 + "}", "is not JSON: Exceeds the limit"),
        ('{"a": ' + '{"b": ' * 80 + "1" + "}" * 81, "a: nested more than 64 deep"),
        ('{"a": ' + "[" * 10**6, "nested too deeply"),
        ("[1]", "is not a JSON object"),
        ("version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        ('{"a": ', "is not JSON"),
        ("\udcff", "cannot be read"),
    ],
)
def test_what_no_model_has_is_one_line_that_names_it(path: Path, content: str, what: str) -> None:
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(FileError) as refused:
        read_config(path)
    assert str(refused.value).startswith(f"{path}")
    assert what in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_what_is_no_file_is_not_read(path: Path) -> None:
    """A device has zeros without an end, and a pipe has nothing."""
    path.symlink_to("/dev/zero")
    with pytest.raises(FileError, match=r"config\.json is no file"):
        read_config(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileError, match=r"config\.json is no file"):
        read_config(path)


def test_a_huge_file_is_not_read(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    for read in (read_config, read_json, read_text):
        with pytest.raises(FileError, match=f"1099511627776 bytes are too many, {MOST_BYTES} at most"):
            read(path)


@pytest.mark.parametrize(
    "config",
    [
        json.loads((SHIPPED_MODEL / "config.json").read_text()),
        {"rope_theta": 10**12, "rope_parameters": {"factor": 1e10}, "initializer_range": 1e-9},
        {"max_position_embeddings": 10_485_760, "vocab_size": 262_208, "num_hidden_layers": 126},
        {"layer_types": ["full_attention"] * 126, "_commit_hash": "9" * 40, "num_experts_per_tok": 8},
    ],
)
def test_what_models_have_is_read(path: Path, config: dict[str, Any]) -> None:
    path.write_text(json.dumps(config))
    assert read_config(path) == config
