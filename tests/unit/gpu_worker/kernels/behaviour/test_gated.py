"""A gated product in two parts is the whole, so that something can be added before the activation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.coded import CodedGated
from gpu_worker.kernels.cpu.int4 import Int4Gated
from gpu_worker.kernels.cpu.linear import PackedGated
from gpu_worker.kernels.cpu.quantized import QuantizedGated
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.quantized import QuantizedReference
from tests.support.coded import KINDS, coded
from tests.support.native import TESTED

SHAPES = [(1, 5), (40, 33), (129, 200)]
CPP: dict[str, Callable[..., Any]] = {
    f"{kind.__name__} {name}": lambda weight, bias, activation, kind=kind, name=name: kind(
        library.load(name, 1), weight, bias, activation
    )
    for kind in (PackedGated, QuantizedGated, Int4Gated)
    for name in TESTED
}
PYTORCH: dict[str, Callable[..., Any]] = {
    "plain": ReferenceKernels().gated,
    "int8": QuantizedReference(torch.int8).gated,
    "int4": Int4Reference().gated,
}


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(gated: Any, width: int, inner: int, dtype: torch.dtype) -> None:
    for rows in (1, 7, 40):
        x = drawn(rows, width, dtype=dtype, seed=rows)
        parts = gated.parts(x)
        assert parts.shape == (rows, 2 * inner)
        whole, found = gated(x), gated.activated(parts.clone())
        # Some instructions round what is smaller than any normal number to 0, as products with it do.
        differs = (whole != found) & (found.abs() >= torch.finfo(dtype).tiny)
        assert not differs.any()


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CPP | PYTORCH)
def test_the_parts_make_the_whole(name: str, dtype: torch.dtype, activation: str) -> None:
    for inner, width in SHAPES:
        weight, bias = drawn(2 * inner, width, dtype=dtype), drawn(2 * inner, dtype=dtype, seed=1)
        check((CPP | PYTORCH)[name](weight, bias, activation), width, inner, dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TESTED)
def test_of_codes(name: str, kind: str) -> None:
    for inner, width in SHAPES:
        weight = coded(kind, 2 * inner, width, torch.bfloat16, True)
        check(CodedGated(library.load(name, 1), weight, None, "silu"), width, inner, torch.bfloat16)


@pytest.mark.parametrize("name", TESTED)
def test_parts_are_gates_and_then_ups(name: str) -> None:
    weight, x = drawn(2 * 40, 33, dtype=torch.float32), drawn(5, 33, dtype=torch.float32, seed=2)
    gated = PackedGated(library.load(name, 1), weight, None, "silu")
    torch.testing.assert_close(gated.parts(x), x @ weight.T)
