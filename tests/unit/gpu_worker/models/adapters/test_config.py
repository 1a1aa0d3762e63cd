"""adapter_config.json of PEFT: ranks and scales, and what is refused, in one line that names the key."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.errors import ModelError
from gpu_worker.models.adapters.config import AdapterConfig, read_adapter_config

LAYER = "model.layers.3.self_attn.q_proj"


def read(directory: Path, **values: Any) -> AdapterConfig:
    whole = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, **values}
    (directory / "adapter_config.json").write_text(json.dumps(whole))
    return read_adapter_config(directory)


def test_scales(tmp_path: Path) -> None:
    assert read(tmp_path).scale_of(LAYER) == 2
    assert read(tmp_path, use_rslora=True).scale_of(LAYER) == 16 / 8**0.5
    assert read(tmp_path, r=None, lora_alpha=None).scale_of(LAYER) == 1, "PEFT's own defaults"


@pytest.mark.parametrize(
    "pattern", ["q_proj", LAYER, r"model\.layers\.[0-9]+\.self_attn\.q_proj", "^model.layers.3.*"]
)
def test_patterns(tmp_path: Path, pattern: str) -> None:
    """The first pattern that fits a name, or its end, as PEFT has it."""
    config = read(tmp_path, rank_pattern={pattern: 4, "self_attn.q_proj": 2}, alpha_pattern={pattern: 6})
    assert config.rank_of(LAYER) == 4
    assert config.scale_of(LAYER) == 6 / 4
    assert config.rank_of(LAYER.replace("3", "4").replace("q", "k")) == 8


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"peft_type": "IA3"}, "peft_type: adapters of type LORA are served, not 'IA3'"),
        ({"use_dora": True}, "use_dora: DoRA is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: modules that were trained whole"),
        ({"bias": "all"}, "bias: adapters with biases are not supported: 'all'"),
        ({"lora_bias": True}, "lora_bias: biases of adapters"),
        ({"target_parameters": ["experts.down_proj"]}, "target_parameters: adapters of stacked parameters"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: 'pissa' changes the model's own weights"),
        ({"r": 0}, "r: a positive integer is needed, not 0"),
        ({"r": 5000}, "r: a rank is from 1 to 4096, not 5000"),
        ({"lora_alpha": -1}, "lora_alpha: a positive number is needed"),
        ({"rank_pattern": {"q": "x"}}, "rank_pattern: a rank is from 1 to 4096, not x"),
        ({"alpha_pattern": {"q": 0}}, "alpha_pattern: a positive number is needed, not 0"),
        ({"rank_pattern": {"(q": 4}}, "rank_pattern: '\\(q' is no regular expression"),
        ({"rank_pattern": {"(a+)+b": 4}}, "is no name, or too much of a regular expression"),
        ({"rank_pattern": {r"\w*a\w*a\w*b": 4}}, "is no name, or too much of a regular expression"),
        ({"rank_pattern": {rf"\w*.a{number}": 4 for number in range(33)}}, "at most 32 patterns"),
        ({"rank_pattern": {"a" * 201: 4}}, "is no name, or too much of a regular expression"),
        ({"rank_pattern": [4]}, "rank_pattern: an object is needed"),
    ],
)
def test_refused(tmp_path: Path, values: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelError, match=what) as error:
        read(tmp_path, **values)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "adapter_config.json"))


@pytest.mark.parametrize(
    "values", [{"modules_to_save": []}, {"use_dora": False}, {"init_lora_weights": "eva"}]
)
def test_what_means_nothing_is_taken(tmp_path: Path, values: dict[str, Any]) -> None:
    given = {"task_type": "CAUSAL_LM", "target_modules": "all-linear", "fan_in_fan_out": True}
    assert read(tmp_path, **given | values) == read(tmp_path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_adapter_config(tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text("[]")
    with pytest.raises(ModelError, match="is not a JSON object"):
        read_adapter_config(tmp_path)
    path.write_text(" " * (2**20 + 1))
    with pytest.raises(ModelError, match="bytes are too many"):
        read_adapter_config(tmp_path)
