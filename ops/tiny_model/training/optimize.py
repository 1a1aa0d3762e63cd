"""One step of training: optimizer, learning rate and update, for `train.py` and `tune.py` alike."""

import torch
from torch import nn

from ops.tiny_model.training.recipe import Recipe, Tuning


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW; matrices decay, and those of attention learn more slowly than the rest."""
    matrices = [(name, p) for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    groups = [
        {"params": [p for name, p in matrices if "self_attn" in name], "share": 0.5},
        {"params": [p for name, p in matrices if "self_attn" not in name], "share": 1.0},
        {
            "params": [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name],
            "share": 1.0,
            "weight_decay": 0.0,
        },
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def rate_at(recipe: Recipe | Tuning, step: int) -> float:
    """The learning rate at a step: warm up, stay, fall."""
    decay = recipe.steps * recipe.decay_share
    return recipe.rate * min(1.0, (step + 1) / recipe.warm_steps, (recipe.steps - step) / decay)


def update(model: nn.Module, optim: torch.optim.Optimizer, rate: float) -> None:
    """Change the weights by their gradients, which are then dropped."""
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optim.param_groups:
        group["lr"] = rate * group["share"]
    optim.step()
    optim.zero_grad()
