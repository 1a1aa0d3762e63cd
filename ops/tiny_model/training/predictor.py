"""A layer for multi-token prediction behind the shipped model, which stays as it is.

It learns the model's own next tokens, and those behind them from its own results, as it is used
(`gpu_worker/models/predictor.py`).
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.modeling_layers import MtpModel

from ops.tiny_model.training.data import batches
from ops.tiny_model.training.optimize import optimizer_of, rate_at, update
from ops.tiny_model.training.recipe import Recipe

DEPTHS = (1.0, 0.6, 0.4)
"""Weight of the first token that is predicted, of the second, and so on."""


def losses(model: LlamaForCausalLM, predictor: MtpModel, ids: Tensor) -> list[Tensor]:
    """Of token ids [rows, length]: for each depth the divergence from what the model says of the same token,
    in nats a token."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
            wanted = model.lm_head(hidden).float().log_softmax(-1)
        found = []
        for depth in range(len(DEPTHS)):
            hidden, ids = hidden[:, :-1], ids[:, 1:]
            positions = torch.arange(1 + depth, 1 + depth + ids.shape[1])[None]
            hidden = predictor.forward_layer(0, hidden, positions, None, input_ids=ids)
            guessed = model.lm_head(hidden).float().log_softmax(-1)
            meant = wanted[:, 1 + depth :]
            lost = nn.functional.kl_div(
                guessed.flatten(0, 1), meant.flatten(0, 1), reduction="batchmean", log_target=True
            )
            found.append(lost)
    return found


def train_predictor(recipe: Recipe, tokenizer: Tokenizer, directory: Path, target: Path) -> None:
    """Train a layer for the model in `directory`, and write it to `target`: the config.json of a model that
    has it, and its tensors alone."""
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).requires_grad_(False)
    torch.manual_seed(recipe.seed)
    model.config.num_mtp_layers = 1
    predictor = MtpModel(model, 1)
    layer = predictor.layers[0]
    optim = optimizer_of(layer)
    for step, ids in enumerate(batches(recipe, tokenizer, 0)):
        each = losses(model, predictor, ids)
        torch.autograd.backward(torch.stack([w * loss for w, loss in zip(DEPTHS, each, strict=True)]).sum())
        update(layer, optim, rate_at(recipe, step))
        if step % 20 == 0 or step == recipe.steps - 1:
            shown = " ".join(f"{loss.item():.3f}" for loss in each)
            print(f"{recipe.name} step {step} loss {shown}", flush=True)
    target.mkdir(exist_ok=True)
    base = f"model.layers.{model.config.num_hidden_layers}."
    names = {"mtp_block.": base, "post_norm.": f"{base}shared_head.norm."}
    tensors = {}
    for name, tensor in layer.state_dict().items():
        part = next((part for part in names if name.startswith(part)), "")
        tensors[names.get(part, base) + name.removeprefix(part)] = tensor.bfloat16()
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    (target / "model.safetensors").chmod(0o644)
    values = json.loads((directory / "config.json").read_text())
    values["num_nextn_predict_layers"] = 1
    (target / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
