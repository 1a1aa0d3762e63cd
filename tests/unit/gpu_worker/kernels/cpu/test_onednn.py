"""Products by oneDNN, and the processors that use them."""

import pytest
import torch

from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.linear import PackedGated, PackedLinear
from gpu_worker.kernels.cpu.onednn import OneDnnLinear
from gpu_worker.kernels.reference.kernels import ReferenceGated
from tests.support.native import NO_ONEDNN_BFLOAT16

DTYPES = (
    torch.float32,
    pytest.param(
        torch.bfloat16, marks=pytest.mark.skipif(bool(NO_ONEDNN_BFLOAT16), reason=NO_ONEDNN_BFLOAT16)
    ),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("biased", [False, True])
def test_same_products(dtype: torch.dtype, biased: bool) -> None:
    kernels = library.load(build.supported()[0], 1)
    weight, tolerance = torch.randn(66, 96).to(dtype) / 10, 4 * torch.finfo(dtype).eps
    bias = torch.randn(66).to(dtype) if biased else None
    for rows in (0, 1, 5, 40):
        x = torch.randn(rows, 96).to(dtype)
        linear = OneDnnLinear(weight, bias)
        for ours, theirs in (
            (PackedLinear(kernels, weight, bias), linear),
            (PackedGated(kernels, weight, bias, "gelu"), ReferenceGated(linear, "gelu")),
        ):
            torch.testing.assert_close(theirs(x), ours(x), rtol=tolerance, atol=8 * tolerance)
        out = torch.ones(rows, 66, dtype=dtype)
        linear.add_to(x, out)
        torch.testing.assert_close(out, linear(x) + 1, rtol=tolerance, atol=8 * tolerance)


def test_rows_that_were_kept() -> None:
    weight, ids = torch.randn(6, 4), torch.tensor([5, 0, 5])
    assert torch.equal(OneDnnLinear(weight, None, keeps_rows=True).rows(ids), weight[ids])
    with pytest.raises(IndexError):
        OneDnnLinear(weight, None, keeps_rows=True).rows(torch.tensor([6]))
    with pytest.raises(ValueError, match="not kept"):
        OneDnnLinear(weight, None).rows(ids)
