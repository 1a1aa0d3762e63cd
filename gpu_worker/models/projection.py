"""The linear layers through which pooled hidden states go: `Dense` modules of sentence-transformers.

    mean or one hidden state [hidden size] ──▶ Dense ──▶ ... ──▶ Dense [embedding size] ──▶ length 1

All is computed in float32, whatever the type of the model's weights.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, relu, silu

from gpu_worker.errors import ModelError
from gpu_worker.models.checkpoint import Checkpoint, open_checkpoint
from ops.model_directory.dense import Dense, dense_in
from ops.model_directory.files import FileError

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "GELU": gelu,
    "Identity": lambda vectors: vectors,
    "ReLU": relu,
    "SiLU": silu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
}


class Layer:
    """One layer, with its weights in float32."""

    def __init__(self, dense: Dense, checkpoint: Checkpoint, device: torch.device) -> None:
        """Raises `ModelError` if the checkpoint does not fit."""

        def weight(name: str, *shape: int) -> Tensor:
            return checkpoint.take(name, shape).to(device=device, dtype=torch.float32, copy=True)

        matrix = (dense.outputs, dense.inputs)
        self._weight = weight("linear.weight", *matrix)
        self._bias = weight("linear.bias", dense.outputs) if dense.bias else None
        self._activation = _ACTIVATIONS[dense.activation]
        self._residual = dense.residual
        squared = dense.inputs == dense.outputs
        self._beside = weight("residual.weight", *matrix) if dense.residual and not squared else None

    def __call__(self, vectors: Tensor) -> Tensor:
        found = self._activation(linear(vectors, self._weight, self._bias))
        if self._residual:
            found = found + (vectors if self._beside is None else linear(vectors, self._beside))
        return found


class Projection:
    """Layers in order."""

    def __init__(self, layers: Sequence[Layer], inputs: int, outputs: int) -> None:
        self._layers, self.inputs, self.outputs = layers, inputs, outputs

    def __call__(self, pooled: Tensor) -> Tensor:
        """Embeddings [texts, outputs] of pooled hidden states [texts, inputs], float32."""
        for layer in self._layers:
            pooled = layer(pooled)
        return pooled


def load_projection(directory: Path, hidden_size: int, device: torch.device) -> Projection | None:
    """The layers after the pooling of a model with this size of hidden states; None if it has none, or one
    that Quire has not. Raises `ModelError`."""
    try:
        dense, _ = dense_in(directory)
    except FileError as error:
        raise ModelError(str(error)) from error
    layers, size = list[Layer](), hidden_size
    for each in dense:
        path = each.folder / "config.json"
        if each.inputs != size:
            raise ModelError(
                f"{path}: in_features: {each.inputs} is not {size}, the size of what it is given"
            )
        with open_checkpoint(each.folder) as checkpoint:
            try:
                layers.append(Layer(each, checkpoint, device))
            except ModelError as error:
                raise ModelError(f"{each.folder}: {error}") from error
            if unknown := checkpoint.unread():
                raise ModelError(f"{path} does not account for tensor {unknown[0]}")
        size = each.outputs
    return Projection(layers, hidden_size, size) if layers else None
