"""Products with weights, norms, and mixtures of experts: values and protocols."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

GROUP = 32
"""Inputs of an output that share a scale in weights of 4 bits."""
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
"""Numbers of e2m1 by their bits: a sign, 2 bits of exponent, 1 of fraction."""


class ScaledWeight(Tensor):
    """A weight [out, in] that was quantized to 4 bits before, with its scales.

    Less its shifts it has whole multiples of the scales, from -8 to 7, or those of `FP4`, though they may be
    rounded to bfloat16. Back ends of that type keep them as they are. To others this is a tensor. Rows of it,
    `weight[rows]`, have their scales.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    scales: Tensor
    """float16 [out, groups of `GROUP` inputs]."""
    shifts: Tensor | None
    """Added to each weight of a group by its zero point, float32 [out, groups of `shift_size` inputs]. None:
    zero."""
    shift_size: int
    kind: Literal["int4", "fp4"]

    @staticmethod
    def of(
        weight: Tensor,
        scales: Tensor,
        shifts: Tensor | None = None,
        shift_size: int = 0,
        kind: Literal["int4", "fp4"] = "int4",
    ) -> "ScaledWeight":
        """`weight`, with its scales."""
        scaled = weight.as_subclass(ScaledWeight)
        scaled.scales, scaled.shifts, scaled.shift_size = scales, shifts, shift_size
        scaled.kind = kind
        return scaled

    def __getitem__(self, rows: Any) -> Tensor:
        shifts = None if self.shifts is None else self.shifts[rows]
        own = super().__getitem__(rows)
        return ScaledWeight.of(own, self.scales[rows], shifts, self.shift_size, self.kind)


def scales_of(weight: Tensor, kind: Literal["int4", "fp4"] = "int4") -> Tensor | None:
    """Scales, float16 [out, groups of `GROUP` inputs], of whose multiples of type `kind` a weight consists.
    None: unknown."""
    known = isinstance(weight, ScaledWeight) and weight.kind == kind and weight.shifts is None
    return weight.scales if known else None  # type: ignore[attr-defined]


class ByteWeight(Tensor):
    """A weight [out, in] that was quantized to int8 or fp8 before, with the scale of each output.

    It has multiples of the scales, though they may be rounded to bfloat16. Back ends of that type keep them
    as they are. To others this is a tensor. Rows of it, `weight[rows]`, have their scales.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    scales: Tensor
    """float32 [out]."""
    kind: torch.dtype
    """int8 or fp8."""

    @staticmethod
    def of(weight: Tensor, scales: Tensor, kind: torch.dtype) -> "ByteWeight":
        """`weight`, with its scales."""
        scaled = weight.as_subclass(ByteWeight)
        scaled.scales, scaled.kind = scales, kind
        return scaled

    def __getitem__(self, rows: Any) -> Tensor:
        return ByteWeight.of(super().__getitem__(rows), self.scales[rows], self.kind)


def byte_scales_of(weight: Tensor, kind: torch.dtype) -> Tensor | None:
    """Scales, float32 [out], of whose multiples of type `kind` a weight consists. None: unknown."""
    return weight.scales.contiguous() if isinstance(weight, ByteWeight) and weight.kind == kind else None


class Linear(Protocol):
    """A product with a weight [out, in], and a bias [out] if there is one."""

    def __call__(self, hidden: Tensor, /) -> Tensor:
        """[tokens, in] to [tokens, out]."""

    def add_to(self, hidden: Tensor, residual: Tensor, /) -> None:
        """Add the product of hidden [tokens, in] to residual [tokens, out], in place."""

    def rows(self, numbers: Tensor, /) -> Tensor:
        """Rows of the weight, [n, in], for their numbers, int32 or int64 [n]: the look-up of an embedding."""


class Unary(Protocol):
    """A function from [tokens, in] to [tokens, out]."""

    def __call__(self, hidden: Tensor, /) -> Tensor: ...


class Gated(Unary, Protocol):
    """Gated activation of one product: see `Kernels.gated`. It is `activated(parts(hidden))`, bit by bit, but
    for numbers that are smaller than any normal one."""

    def parts(self, hidden: Tensor, /) -> Tensor:
        """The product alone, [tokens, 2 * inner]: gates, then ups, in float32 or in the activations' type."""

    def activated(self, parts: Tensor, /) -> Tensor:
        """activation(gate) * up of what `parts` returns, [tokens, inner]. It may overwrite `parts`."""


class Absorbed(Protocol):
    """The products of latent attention with the weights that would project a compressed row to keys and
    values: see `models/latent.py`."""

    def queries(self, plain: Tensor, /) -> Tensor:
        """From what is not rotated of queries, [tokens, heads, key size], to [tokens, heads, row]."""

    def values(self, mixed: Tensor, /) -> Tensor:
        """From rows that attention has mixed, [tokens, heads, row], to [tokens, heads, value size]."""


class Norm(Unary, Protocol):
    """See `Kernels.norm`. The result of a row [in] depends on that row alone."""

    def each(self, rows: Tensor, /) -> None:
        """Normalize each of n parts of a row by itself, in place: [tokens, n * in]. `rows` may be a slice of
        wider rows."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How experts and routing weights of a token follow from router logits: see `reference/route.py`."""

    experts_per_token: int
    """Number of experts that each token goes to (num_experts_per_tok)."""
    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
    """Function from router logits to scores."""
    normalized: bool = False
    """The routing weights of a token are divided by their sum (norm_topk_prob)."""
    scale: float = 1.0
    """Factor of routing weights, after normalization (routed_scaling_factor)."""
    num_groups: int = 1
    """Number of expert groups (n_group). 1: experts have no groups."""
    top_k_groups: int = 1
    """Number of groups that a token selects its experts from (topk_group)."""
    group_top_k: int = 1
    """Number of a group's best experts whose scores, summed, are the score of the group."""


class Route(Protocol):
    """Selects the experts of each token."""

    def __call__(self, router_logits: Tensor, /) -> tuple[Tensor, Tensor]:
        """Router logits, float32 [tokens, experts], to routing weights, float32, and selected experts, int64,
        both [tokens, experts_per_token]."""


@dataclass(frozen=True, slots=True)
class Expert:
    """The weights of an expert."""

    up: Tensor
    """Gate and up, [2 * inner, size], as `Kernels.gated` takes them; or up, [inner, size], if the activation
    is `UNGATED`."""
    down: Tensor
    """[size, inner]."""
    up_bias: Tensor | None = None
    """[2 * inner], or [inner]."""
    down_bias: Tensor | None = None
    """[size]."""


UNGATED = "relu2"
"""The activation of experts without gates: max(up, 0)^2 (So et al. 2021, "Primer")."""


@dataclass(frozen=True, slots=True)
class Clamped:
    """The gated activation of gpt-oss: (up + 1) * gate * sigmoid(alpha * gate), of clamped gate and up."""

    alpha: float
    """Steepness of the sigmoid."""
    limit: float
    """The largest gate, and the largest absolute value of up."""


class Mixture(Protocol):
    """The experts of a layer."""

    def __call__(self, hidden: Tensor, routing_weights: Tensor, selected_experts: Tensor, /) -> Tensor:
        """hidden [tokens, size] to float32 of the same shape: the weighted sum of each token's experts.

        `routing_weights`: float32, `selected_experts`: int64, both [tokens, experts_per_token]. The experts
        of a token are distinct.
        """
