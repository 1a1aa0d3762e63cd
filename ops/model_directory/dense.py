"""`Dense` modules of sentence-transformers: linear layers through which an embedding goes after its pooling.

    Transformer ──▶ Pooling ──▶ Dense ──▶ Dense ──▶ Normalize        a vector for a text
    Transformer ──────────────▶ Dense                                one for each token: ColBERT
                                in_features, out_features, bias, activation_function, use_residual

Each has a folder with its configuration and weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.model_directory.files import FileError, read_json
from ops.model_directory.modules import modules_in

ACTIVATIONS = frozenset({"GELU", "Identity", "ReLU", "SiLU", "Sigmoid", "Tanh"})
"""Modules of torch.nn that may follow the linear layer, by the last part of their names."""
MOST_FEATURES = 2**16

_TANH = "torch.nn.modules.activation.Tanh"
"""The activation where the configuration names none, as in sentence-transformers."""
_EMBEDDING, _TOKENS = "sentence_embedding", "token_embeddings"
"""What a module reads and writes: the pooled vector, or that of each token."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer with its activation: `activation(W x + b)`, and with `residual` also `x` or `R x`."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str
    """One of `ACTIVATIONS`."""
    residual: bool
    """The inputs are added to the result, by a matrix of their own if there are fewer or more outputs."""


def dense_in(directory: Path) -> tuple[tuple[Dense, ...], tuple[str, ...]]:
    """The layers after a model, in order, and what Quire has not of the model's modules, in words.

    No layers if there is anything of the second kind. Raises `FileError`.
    """
    found, unknown, before = list[Dense](), list[str](), set[str]()
    modules = modules_in(directory)
    pools = any(module.kind == "Pooling" for module in modules)
    for module in modules:
        match module.kind:
            case "Pooling" | "Dense" if "Normalize" in before:
                unknown.append(f"{module.kind} after Normalize")
            case "Dense" if pools and "Pooling" not in before:
                unknown.append("Dense before Pooling")
            case "Dense":
                path = directory / module.path / "config.json"
                given = read_json(path)
                if fault := _fault_in(given, _EMBEDDING if pools else _TOKENS):
                    unknown.append(f"Dense with {fault}")
                found.append(_layer(path, given))
            case "Transformer" | "Pooling" | "Normalize":
                pass
            case other:
                unknown.append(other)
        before.add(module.kind)
    return () if unknown else tuple(found), tuple(unknown)


def _fault_in(given: Mapping[str, Any], name: str) -> str:
    """What Quire has not of a layer that reads and writes `name`; empty: it has all."""
    activation = str(given.get("activation_function", _TANH))
    if not (activation.startswith("torch.nn.") and activation.rpartition(".")[2] in ACTIVATIONS):
        return activation[:80]
    for key in ("module_input_name", "module_output_name"):
        if given.get(key) not in (None, name):
            return f"{key} {str(given[key])[:40]}"
    return ""


def _layer(path: Path, given: Mapping[str, Any]) -> Dense:
    sizes: list[Any] = [given.get(key) for key in ("in_features", "out_features")]
    if not all(type(size) is int and 0 < size <= MOST_FEATURES for size in sizes):
        what = f"numbers from 1 to {MOST_FEATURES} are needed"
        raise FileError(f"{path}: in_features, out_features: {what}, not {str(sizes)[1:-1][:80]}")
    flags: list[Any] = [given.get("bias", True), given.get("use_residual", False)]
    if not all(type(flag) is bool for flag in flags):
        raise FileError(f"{path}: bias, use_residual: true or false is needed, not {str(flags)[1:-1][:80]}")
    activation = str(given.get("activation_function", _TANH)).rpartition(".")[2]
    return Dense(path.parent, sizes[0], sizes[1], flags[0], activation, flags[1])
