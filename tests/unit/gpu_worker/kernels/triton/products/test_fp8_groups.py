"""Products with weights of fp8 whose scales are of groups of inputs: those of the dequantized weights."""

import pytest
import torch

from gpu_worker.kernels.triton.kernels import GroupsTriton, KeptTriton
from gpu_worker.kernels.triton.products.fp8_groups import MOST_TOKENS, TritonGroupsLinear
from tests.support.scaled import fp8_groups

pytestmark = pytest.mark.usefixtures("poisoned")

CPU = torch.device("cpu")
ALLOWED = {torch.float32: 1e-5, torch.bfloat16: 0.01, torch.float16: 1e-3}


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("tokens", [1, 17, MOST_TOKENS + 1])
@pytest.mark.parametrize(
    ("out", "inputs", "size"), [(70, 330, 128), (40, 96, 32), (130, 700, 256), (64, 40, 40)]
)
def test_products(out: int, inputs: int, size: int, tokens: int, dtype: torch.dtype) -> None:
    weight = fp8_groups(out, inputs, size, dtype)
    chance = torch.Generator().manual_seed(1)
    hidden, bias = (torch.randn(shape, generator=chance).to(dtype) for shape in ((tokens, inputs), (out,)))
    right = hidden.float() @ weight.codes.dequantized().T + bias.float()
    for processors in (1, 132):  # with 132 programs share the groups of a tile
        product = TritonGroupsLinear(weight, bias, dtype, processors)
        residual = torch.ones_like(right).to(dtype)
        product.add_to(hidden, residual)
        for found in (product(hidden), residual - 1):
            assert found.dtype == dtype
            assert (found.float() - right).norm() < ALLOWED[dtype] * right.norm()


def test_rows_and_wide_results() -> None:
    weight = fp8_groups(50, 300, 128, torch.bfloat16)
    product = GroupsTriton(CPU).linear(weight, dtype=torch.float32, keeps_rows=True)
    numbers = torch.tensor([3, 49, 3])
    assert product.rows(numbers).equal(weight.codes.dequantized()[numbers].bfloat16())
    assert product(torch.ones(2, 300).bfloat16()).dtype == torch.float32


def test_gates_are_those_of_plain_weights() -> None:
    weight, hidden = fp8_groups(96, 256, 128), torch.randn(5, 256)
    plain = weight.codes.dequantized()
    kernels = KeptTriton(CPU)
    torch.testing.assert_close(
        kernels.gated(weight)(hidden), kernels.gated(plain)(hidden), atol=1e-4, rtol=1e-4
    )
