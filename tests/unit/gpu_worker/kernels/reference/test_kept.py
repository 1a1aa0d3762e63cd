"""Each weight goes to the back end of its type."""

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.codes import CodedWeight
from gpu_worker.kernels.products import ByteWeight, ScaledWeight
from gpu_worker.kernels.reference.coded import CodedReference
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.reference.kept import KeptReference, kind_of, kinds_kept
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.quantized import QuantizedReference
from gpu_worker.kernels.reference.rows import FP8
from tests.support.coded import coded

HIDDEN = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))


def drawn(low: int, high: int) -> Tensor:
    return torch.randint(low, high, (6, 64), generator=torch.Generator().manual_seed(1)).float()


def weights() -> dict[str, Tensor]:
    """A weight of each type: multiples of scales, of which no row has the largest number."""
    groups = (torch.arange(1, 13).view(6, 2) / 128).half()
    rows = torch.arange(1, 7) / 100
    four = drawn(-5, 5) * groups.float().repeat_interleave(32, 1)
    eight, floats = drawn(-100, 100), drawn(-100, 100).to(FP8).float()
    return {
        "plain": drawn(-9, 9) / 7,
        "int4": ScaledWeight.of(four, groups),
        "int8": ByteWeight.of(eight * rows[:, None], rows, torch.int8),
        "fp8": ByteWeight.of(floats * rows[:, None], rows, FP8),
        "coded": coded("int8", 6, 64),
    }


@pytest.mark.parametrize("name", ["plain", "int4", "int8", "fp8", "coded"])
def test_no_weight_is_rounded_again(name: str) -> None:
    weight = weights()[name]
    is_coded = isinstance(weight, CodedWeight)
    plain = weight.codes.dequantized() if is_coded else weight.as_subclass(Tensor).clone()
    kernels = KeptReference()
    wide = kernels.linear(weight, dtype=torch.float32, keeps_rows=True)
    torch.testing.assert_close(wide.rows(torch.arange(6)), plain, rtol=1e-6, atol=0)
    product, expected = kernels.linear(weight)(HIDDEN), HIDDEN @ plain.T
    # Activations of bytes are rounded, too.
    most = {"int8": 0.01, "fp8": 0.05}.get(name, 1e-6) * expected.abs().max()
    torch.testing.assert_close(product, expected, rtol=0, atol=float(most))


@pytest.mark.parametrize("name", ["plain", "int4", "int8", "fp8", "coded"])
def test_products_are_those_of_the_back_end(name: str) -> None:
    weight = weights()[name]
    others = {
        "plain": ReferenceKernels(),
        "int4": Int4Reference(),
        "int8": QuantizedReference(torch.int8),
        "fp8": QuantizedReference(FP8),
        "coded": CodedReference(),
    }
    other, kernels = others[name], KeptReference()
    assert torch.equal(kernels.linear(weight)(HIDDEN), other.linear(weight)(HIDDEN))
    assert torch.equal(kernels.gated(weight)(HIDDEN), other.gated(weight)(HIDDEN))
    assert kind_of(weight) == (None if name == "plain" else name)


def test_wide_products_of_4_bits_are_plain() -> None:
    weight, kernels = weights()["int4"], KeptReference()
    plain = ReferenceKernels().linear(weight.as_subclass(Tensor), dtype=torch.float32)
    assert torch.equal(kernels.linear(weight, dtype=torch.float32)(HIDDEN), plain(HIDDEN))


def test_types_that_back_ends_keep() -> None:
    assert kinds_kept(KeptReference()) == {"int4", "int8", "fp8", "coded"}
    assert kinds_kept(Int4Reference()) == {"int4"}
    assert kinds_kept(ReferenceKernels()) == set()
