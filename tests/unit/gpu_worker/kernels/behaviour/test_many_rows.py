"""Products of hundreds of rows, and of long ones, are computed in several turns: each row has the bits that
it has beside few others, which other loops compute, and often other instructions."""

import ctypes
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.cpu.coded import CodedLinear
from gpu_worker.kernels.cpu.int4 import Int4Linear
from gpu_worker.kernels.cpu.linear import PackedLinear
from gpu_worker.kernels.cpu.quantized import QuantizedLinear
from gpu_worker.kernels.products import Unary
from tests.support.coded import KINDS, coded
from tests.support.native import WITH_UNITS, with_team

WIDTH = 40
PRODUCTS: dict[str, Callable[[ctypes.CDLL, int], Unary]] = {
    "plain": lambda library, inputs: PackedLinear(library, numbers(WIDTH, inputs)),
    "int8": lambda library, inputs: QuantizedLinear(library, numbers(WIDTH, inputs)),
    "int4": lambda library, inputs: Int4Linear(library, numbers(WIDTH, inputs)),
    **{
        f"{kind}, groups of {size}": lambda library, inputs, kind=kind, size=size: CodedLinear(
            library, coded(kind, WIDTH, inputs, torch.bfloat16, size=size)
        )
        for kind in KINDS
        for size in ((32, 96) if kind != "fp8" else (32, 64, 8192))
    },
}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("name", WITH_UNITS)
@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_row_beside_hundreds_is_that_beside_few(kind: str, name: str) -> None:
    for inputs in (4230, 577):
        product, x = PRODUCTS[kind](with_team(name, 2), inputs), numbers(300, inputs, seed=1)
        few = torch.cat([product(part) for part in x.split(4)])
        for rows in (8, 16, 17, 31, 32, 33, 48, 49, 64, 65, 257, 300):
            assert torch.equal(product(x[:rows]), few[:rows]), rows
