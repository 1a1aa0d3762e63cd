"""Activations in plain PyTorch."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import gelu, relu, silu

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
    "relu": relu,
    "relu2": lambda x: relu(x).square(),  # So et al. 2021, "Primer"
}
