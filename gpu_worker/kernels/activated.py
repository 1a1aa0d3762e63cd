"""A product with an activation behind it, as in an MLP without gates."""

from torch import Tensor

from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Unary


def activated(kernels: Kernels, product: Unary, activation: str) -> Unary:
    """`product`, with `activation` applied to its results in place: see `Kernels.activate`."""

    def compute(hidden: Tensor) -> Tensor:
        out = product(hidden)
        kernels.activate(out, activation)
        return out

    return compute
