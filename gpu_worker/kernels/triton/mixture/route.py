"""Top-k routing (`kernels/reference/route.py`) in one launch: a program takes a token.

A program reads 4 bytes for each expert. A token has few experts, so the program finds the best remaining
expert once for each of them. Of equal scores the expert with the lowest number is selected.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.products import Routing


@triton.jit
def select_experts(
    router_logits,
    score_correction_bias,
    routing_weights,
    selected_experts,
    scale,
    EXPERTS: tl.constexpr,
    EXPERTS_PADDED: tl.constexpr,
    TOP_K: tl.constexpr,
    TOP_K_PADDED: tl.constexpr,
    SIGMOID: tl.constexpr,
    NORMALIZED: tl.constexpr,
):
    """TOP_K: experts of a token. *_PADDED: filled up to a power of two."""
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, EXPERTS_PADDED)
    inside = experts < EXPERTS
    logits = tl.load(router_logits + token * EXPERTS + experts, mask=inside, other=float("-inf"))
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        scores = tl.exp(logits - tl.max(logits, axis=0))
        scores = scores / tl.sum(scores, axis=0)
    corrected = scores
    if score_correction_bias is not None:
        corrected += tl.load(score_correction_bias + experts, mask=inside, other=0.0)
    corrected = tl.where(inside, corrected, float("-inf"))
    places = tl.arange(0, TOP_K_PADDED)
    weights = tl.zeros([TOP_K_PADDED], tl.float32)
    selected = tl.zeros([TOP_K_PADDED], tl.int32)
    for place in tl.static_range(TOP_K):
        best = tl.max(corrected, axis=0)
        # If all scores are NaN this is the last expert.
        expert = tl.min(tl.where(corrected == best, experts, EXPERTS - 1), axis=0)
        weight = tl.sum(tl.where(experts == expert, scores, 0.0), axis=0)
        weights = tl.where(places == place, weight, weights)
        selected = tl.where(places == place, expert, selected)
        corrected = tl.where(experts == expert, float("-inf"), corrected)
    if NORMALIZED:
        weights = weights / (tl.sum(weights, axis=0) + 1e-20)
    to = token * TOP_K + places
    tl.store(routing_weights + to, weights * scale, mask=places < TOP_K)
    tl.store(selected_experts + to, selected.to(tl.int64), mask=places < TOP_K)


class TritonRoute:
    """See `Route`; for routing without groups of experts."""

    def __init__(self, routing: Routing, score_correction_bias: Tensor | None) -> None:
        self._routing, self._score_correction_bias = routing, score_correction_bias

    def __call__(self, router_logits: Tensor) -> tuple[Tensor, Tensor]:
        routing, device = self._routing, router_logits.device
        tokens, experts = router_logits.shape
        top_k = routing.experts_per_token
        routing_weights = torch.empty((tokens, top_k), dtype=torch.float32, device=device)
        selected_experts = torch.empty((tokens, top_k), dtype=torch.int64, device=device)
        padded = triton.next_power_of_2(experts)
        select_experts[(tokens,)](
            router_logits.contiguous(),
            self._score_correction_bias,
            routing_weights,
            selected_experts,
            routing.scale,
            EXPERTS=experts,
            EXPERTS_PADDED=padded,
            TOP_K=top_k,
            TOP_K_PADDED=triton.next_power_of_2(top_k),
            SIGMOID=routing.scoring_func == "sigmoid",
            NORMALIZED=routing.normalized,
            num_warps=max(1, min(4, padded // 128)),
        )
        return routing_weights, selected_experts
