"""DeepSeek's checkpoints: multi-token prediction layers are not loaded, and groups of experts are checked."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_worker.errors import ModelError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.config import read_config
from gpu_worker.models.load import load_model
from tests.unit.gpu_worker.behaviour.test_families import MODELS, random_model

V3 = MODELS["DeepSeek V3"]


def change(directory: Path, **values: Any) -> None:
    """Change values in config.json."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def load(directory: Path) -> None:
    load_model(directory, torch.device("cpu"), ReferenceKernels())


def test_multi_token_prediction_layers_are_not_loaded(tmp_path: Path) -> None:
    random_model(*V3).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"model.layers.3.eh_proj.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    change(tmp_path, num_nextn_predict_layers=1)
    load(tmp_path)
    change(tmp_path, num_nextn_predict_layers=0)
    with pytest.raises(ModelError, match=r"does not account for tensor model\.layers\.3\.eh_proj"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"topk_method": "random"}, "topk_method: 'random' is not one of"),
        ({"topk_group": 5}, "topk_group: 5 of 4 groups"),
        ({"n_group": 3}, "topk_group: 2 of 3 groups of 8 experts"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok: 5 of 4 experts"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace: an integer of at least 0"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, values: dict[str, Any], says: str
) -> None:
    random_model(*V3).config.save_pretrained(tmp_path)
    change(tmp_path, architectures=[V3[0]])
    assert read_config(tmp_path).pages[0].rows == (32,)
    change(tmp_path, **values)
    with pytest.raises(ModelError, match=says):
        read_config(tmp_path)
