"""Random LoRA adapters as directories of PEFT, and models of transformers with them in their weights."""

import copy
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers.pytorch_utils import Conv1D

_LAYER = re.compile(r"\.(layers|h|blocks)\.\d+\.")


def linear_modules(model: Any, every: bool = False) -> dict[str, Any]:
    """The linear modules of a model's layers, by name, without those of experts. `every`: all of them."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D)
        and (every or (_LAYER.search(f".{name}.") and ".experts" not in name))
    }


def write_adapter(
    directory: Path,
    model: Any,
    seed: int = 1,
    rank: int = 4,
    fits: Callable[[str], bool] = lambda name: True,
    ranks: Mapping[str, int] | None = None,
    every: bool = False,
    **config: Any,
) -> Any:
    """Write an adapter of the modules whose names fit. Returns a copy of the model with it in its weights.

    `ranks`: ranks that differ, by module. `every`: see `linear_modules`. `config`: further keys of
    adapter_config.json.
    """
    directory.mkdir(parents=True, exist_ok=True)
    random, merged = torch.Generator().manual_seed(seed), copy.deepcopy(model)
    given = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear", **config}
    if ranks:
        given["rank_pattern"] = dict(ranks)
    tensors = dict[str, torch.Tensor]()
    for name, module in linear_modules(merged, every).items():
        if not fits(name):
            continue
        weight = module.weight.data.T if isinstance(module, Conv1D) else module.weight.data
        own = (ranks or {}).get(name, rank)
        down = torch.randn(own, weight.shape[1], generator=random) / weight.shape[1] ** 0.5
        up = torch.randn(weight.shape[0], own, generator=random) * 0.1
        alpha = given.get("alpha_pattern", {}).get(name, given["lora_alpha"])
        weight += alpha / (own**0.5 if given.get("use_rslora") else own) * (up @ down)
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
    save_file(tensors, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(given))
    return merged
