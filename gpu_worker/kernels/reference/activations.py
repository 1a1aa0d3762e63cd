"""Activations in plain PyTorch."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from gpu_worker.kernels.products import Unary

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
    "relu": relu,
    "relu2": lambda x: relu(x).square(),  # So et al. 2021, "Primer"
}


def activated(product: Unary, activation: str) -> Unary:
    """A product whose results are activated, without gates."""
    activate = ACTIVATIONS[activation]
    return lambda hidden: activate(product(hidden))
