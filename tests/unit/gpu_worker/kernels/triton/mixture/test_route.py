"""Triton routes tokens to the experts that plain PyTorch routes them to."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gpu_worker.kernels.products import Routing
from gpu_worker.kernels.reference.route import ReferenceRoute
from gpu_worker.kernels.triton.kernels import TritonKernels
from gpu_worker.kernels.triton.mixture.route import TritonRoute

pytestmark = pytest.mark.usefixtures("poisoned")


def router_logits(tokens: int, experts: int) -> Tensor:
    return 3 * torch.randn(tokens, experts, generator=torch.Generator().manual_seed(experts))


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
@pytest.mark.parametrize("experts", [6, 60, 128])
def test_experts_and_their_weights(experts: int, routing: Routing, corrected: bool) -> None:
    score_correction_bias = router_logits(1, experts)[0] if corrected else None
    given = router_logits(9, experts)
    routing_weights, selected_experts = TritonRoute(routing, score_correction_bias)(given)
    expected, right = ReferenceRoute(routing, score_correction_bias)(given)
    assert selected_experts.equal(right)
    assert_close(routing_weights, expected, atol=1e-6, rtol=1e-5)


def test_of_equal_scores_the_first_expert(kernels: TritonKernels) -> None:
    routing_weights, selected_experts = kernels.route(Routing(3))(torch.zeros(2, 5))
    assert selected_experts.tolist() == [[0, 1, 2]] * 2
    assert_close(routing_weights, torch.full((2, 3), 0.2))


def test_logits_that_are_nan_select_existing_experts(kernels: TritonKernels) -> None:
    routing_weights, selected_experts = kernels.route(Routing(2))(torch.full((1, 5), torch.nan))
    assert routing_weights.isnan().all()
    assert ((selected_experts >= 0) & (selected_experts < 5)).all()


def test_groups_are_left_to_pytorch(kernels: TritonKernels) -> None:
    routing, given = Routing(2, "sigmoid", num_groups=4, top_k_groups=2, group_top_k=2), router_logits(5, 16)
    found, expected = kernels.route(routing)(given), ReferenceRoute(routing, None)(given)
    assert all(one.equal(other) for one, other in zip(found, expected, strict=True))
