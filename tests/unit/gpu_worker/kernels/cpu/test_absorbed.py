"""The products of latent attention in C++ are those of PyTorch, and a row's depend on that row alone."""

import ctypes

import pytest
import torch

from gpu_worker.kernels.cpu.absorbed import CpuAbsorbed
from gpu_worker.kernels.reference.absorbed import ReferenceAbsorbed
from tests.support.native import WITH_UNITS

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.parametrize("native", WITH_UNITS, indirect=True),
]

SHAPES = ((4, 12, 24, 10), (1, 5, 33, 7), (3, 31, 63, 5), (3, 128, 96, 64), (16, 64, 128, 32))
"""(heads, key size, row, value size): whole panels and broken ones, what fills matrix units, and one less."""
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_absorbed(native: ctypes.CDLL, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    heads, key, row, value = shape
    generator = torch.Generator().manual_seed(sum(shape))

    def numbers(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator).to(dtype)

    up_key, up_value = numbers(heads, key, row) / key**0.5, numbers(heads, row, value) / row**0.5
    ours, plain = CpuAbsorbed(native, up_key, up_value), ReferenceAbsorbed(up_key, up_value)
    for tokens in (0, 1, 2, 13, 33, 70):
        plain_part, mixed = numbers(tokens, heads, key + 3)[..., :key], numbers(tokens, heads, row)
        for found, expected, x in (
            (ours.queries, plain.queries, plain_part),
            (ours.values, plain.values, mixed),
        ):
            out = found(x)
            torch.testing.assert_close(out, expected(x), atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
            for first in range(0, tokens, 7):
                assert found(x[first : first + 3]).equal(out[first : first + 3])


def test_what_does_not_fit_is_refused(native: ctypes.CDLL) -> None:
    absorbed = CpuAbsorbed(native, torch.zeros(2, 8, 16), torch.zeros(2, 16, 4))
    for x in (torch.zeros(1, 2, 9), torch.zeros(1, 3, 8), torch.zeros(1, 2, 8, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match=r"expected torch.float32 \[rows, 2, 8\]"):
            absorbed.queries(x)
