"""Directories of sentence-transformers: random layers after a model's pooling, and what torch.nn computes."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (nn.GELU, nn.Identity, nn.ReLU, nn.SiLU, nn.Sigmoid, nn.Tanh)
}
"""Modules by the names that sentence-transformers writes."""
IDENTITY, TANH = (f"torch.nn.modules.{name}" for name in ("linear.Identity", "activation.Tanh"))


def dense(
    inputs: int, outputs: int, activation: str = IDENTITY, bias: bool = False, **more: Any
) -> dict[str, Any]:
    """The configuration of a layer."""
    return {
        "in_features": inputs,
        "out_features": outputs,
        "bias": bias,
        "activation_function": activation,
        **more,
    }


def write_modules(directory: Path, modules: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """modules.json: a Transformer, and then modules with these configurations."""
    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for place, (kind, config) in enumerate(modules, 1):
        path = f"{place}_{kind}"
        (directory / path).mkdir()
        if config:
            (directory / path / "config.json").write_text(json.dumps(config))
        listed.append(
            {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        )
    (directory / "modules.json").write_text(json.dumps(listed))


def write(
    directory: Path, layers: Sequence[Mapping[str, Any]], pooling: str | None = "mean"
) -> Callable[[Tensor], Tensor]:
    """Write layers, after a pooling or without one. Gives what makes embeddings of vectors."""
    before = [] if pooling is None else [("Pooling", {"pooling_mode": pooling})]
    write_modules(directory, [*before, *(("Dense", config) for config in layers), ("Normalize", {})])
    torch.manual_seed(0)
    steps = list[Callable[[Tensor], Tensor]]()
    for place, config in enumerate(layers, 1 + len(before)):
        inputs, outputs = config["in_features"], config["out_features"]
        linear = nn.Linear(inputs, outputs, bias=config["bias"])
        beside = nn.Linear(inputs, outputs, bias=False) if config.get("use_residual") else None
        weights = {f"linear.{name}": weight.data for name, weight in linear.named_parameters()}
        if beside is not None and inputs != outputs:
            weights["residual.weight"] = beside.weight.data
        elif beside is not None:
            beside.weight.data = torch.eye(inputs)
        save_file(weights, directory / f"{place}_Dense" / "model.safetensors")
        steps.append(_step(linear, ACTIVATIONS[config["activation_function"]](), beside))

    def embedding(pooled: Tensor) -> Tensor:
        with torch.inference_mode():
            for step in steps:
                pooled = step(pooled)
            return normalize(pooled, dim=-1)

    return embedding


def _step(linear: nn.Linear, activation: nn.Module, beside: nn.Linear | None) -> Callable[[Tensor], Tensor]:
    def step(vectors: Tensor) -> Tensor:
        found: Tensor = activation(linear(vectors))
        return found if beside is None else found + beside(vectors)

    return step
