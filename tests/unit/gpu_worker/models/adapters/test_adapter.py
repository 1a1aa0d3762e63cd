"""The factors of an adapter, and what is refused, in one line that names the tensor."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gpu_worker.errors import ModelError
from gpu_worker.models.adapters.adapter import Adapter, read_adapter
from gpu_worker.models.families.family import Family, Names

BARE = "layers.0.self_attn.q_proj"
MODULE = f"model.{BARE}"
DOWN, UP = (f"base_model.model.{MODULE}.lora_{factor}.weight" for factor in "AB")
GOOD = {DOWN: torch.ones(4, 8), UP: torch.ones(6, 4)}


def read(directory: Path, tensors: dict[str, torch.Tensor], **aliases: str) -> Adapter:
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 2}))
    save_file(tensors, directory / "adapter_model.safetensors")
    return read_adapter("a", directory, Family(aliases=aliases))


def test_factors_by_the_name_of_their_product(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    assert found.name == "a"
    factors = found.factors[BARE]
    assert (factors.key, factors.scale) == (DOWN, 0.5)
    assert (factors.down.shape, factors.up.shape) == ((4, 8), (6, 4))


@pytest.mark.parametrize(
    "within",
    [
        BARE,
        f"model.language_model.{BARE}",
        f"language_model.model.{BARE}",
        f"language_model.{BARE}",
        "model.layers.0.attention.q_proj",
    ],
)
def test_names_that_the_model_has_otherwise(tmp_path: Path, within: str) -> None:
    tensors = {key.replace(MODULE, within): tensor for key, tensor in GOOD.items()}
    assert list(read(tmp_path, tensors, **{".attention.": ".self_attn."}).factors) == [BARE]


@pytest.mark.parametrize("prefix", ["model.decoder.", "decoder.", ""])
def test_a_base_of_several_parts(prefix: str) -> None:
    names = Names(base="model.decoder.")
    assert names.bare(f"{prefix}layers.0.fc1.weight") == "layers.0.fc1.weight"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({UP: None}, f"tensor {DOWN}: there is no lora_B beside it"),
        ({DOWN: None}, f"tensor {UP}: there is no lora_A beside it"),
        ({DOWN: torch.ones(3, 8)}, "ranks 3 and 4, where adapter_config.json means 4"),
        ({UP: torch.ones(6, 5)}, "ranks 4 and 5, where adapter_config.json means 4"),
        ({DOWN: torch.ones(4)}, r"shape \[4\] and type float32 are not those of a factor"),
        ({DOWN: torch.ones(4, 8, dtype=torch.int8)}, r"shape \[4, 8\] and type int8 are not"),
        ({f"base_model.model.{MODULE}.lora_magnitude_vector": torch.ones(6)}, "DoRA is not supported"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4, 9)}, "of embeddings are not"),
        ({f"base_model.model.{MODULE}.lora_B.bias": torch.ones(6)}, "biases of adapters are not supported"),
        ({"base_model.model.lm_head.weight": torch.ones(9, 8)}, "it is no factor of a LoRA adapter"),
        ({f"{MODULE}.lora_A.weight": torch.ones(4, 8)}, "it is no factor of a LoRA adapter"),
        (
            {key.replace("model.layers", "model.vision_tower.x"): each + 1 for key, each in GOOD.items()},
            "it does not belong to the language model",
        ),
        (
            {key.replace(MODULE, BARE): each + 1 for key, each in GOOD.items()},
            f"tensor {DOWN}: {DOWN.replace(MODULE, BARE)} is for the same product",
        ),
        ({DOWN.replace("q_proj", "a" * 250): torch.ones(4, 8)}, "a name of 306 letters, of 256 at most"),
        ({DOWN: None, UP: None}, "there are no factors in it"),
    ],
)
def test_refused(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    tensors = {key: tensor for key, tensor in (GOOD | changes).items() if tensor is not None}
    with pytest.raises(ModelError, match=what) as error:
        read(tmp_path, tensors)
    assert "\n" not in str(error.value)
    assert str(tmp_path / "adapter_model.safetensors") in str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    read(tmp_path, GOOD)
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        read_adapter("a", tmp_path, Family())
    path.unlink()
    with pytest.raises(ModelError, match=r"has no adapter_model.safetensors$"):
        read_adapter("a", tmp_path, Family())
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="are never loaded"):
        read_adapter("a", tmp_path, Family())
