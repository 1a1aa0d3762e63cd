"""Which blocks a token goes to, as plain PyTorch chooses them."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gpu_worker.kernels.interface import Routing
from gpu_worker.kernels.reference.route import PlainRoute
from gpu_worker.kernels.triton.kernels import TritonKernels
from gpu_worker.kernels.triton.mixture.route import TritonRoute

pytestmark = pytest.mark.usefixtures("poisoned")


def said(tokens: int, blocks: int) -> Tensor:
    return 3 * torch.randn(tokens, blocks, generator=torch.Generator().manual_seed(blocks))


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(
    "routing",
    [
        Routing(1),
        Routing(2, normalized=True),
        Routing(6, scale=2.5),
        Routing(3, "sigmoid", normalized=True, scale=0.5),
    ],
)
@pytest.mark.parametrize("blocks", [6, 60, 128])
def test_blocks_and_their_shares(blocks: int, routing: Routing, corrected: bool) -> None:
    correction = said(1, blocks)[0] if corrected else None
    given = said(9, blocks)
    shares, chosen = TritonRoute(routing, correction)(given)
    expected, right = PlainRoute(routing, correction)(given)
    assert chosen.equal(right)
    assert_close(shares, expected, atol=1e-6, rtol=1e-5)


def test_of_equal_ones_the_first(kernels: TritonKernels) -> None:
    shares, chosen = kernels.route(Routing(3))(torch.zeros(2, 5))
    assert chosen.tolist() == [[0, 1, 2]] * 2
    assert_close(shares, torch.full((2, 3), 0.2))


def test_blocks_that_there_are_even_where_nothing_is_a_number(kernels: TritonKernels) -> None:
    shares, chosen = kernels.route(Routing(2))(torch.full((1, 5), torch.nan))
    assert shares.isnan().all()
    assert ((chosen >= 0) & (chosen < 5)).all()


def test_groups_are_left_to_pytorch(kernels: TritonKernels) -> None:
    routing, given = Routing(2, "sigmoid", groups=4, groups_per_token=2, heard=2), said(5, 16)
    found, expected = kernels.route(routing)(given), PlainRoute(routing, None)(given)
    assert all(one.equal(other) for one, other in zip(found, expected, strict=True))
