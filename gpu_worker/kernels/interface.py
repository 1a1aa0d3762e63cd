"""The interface between models and back ends. There is a back end for each kind of device.

A back end takes each weight once, when the model is loaded, and may lay it out in its own way. It returns an
object that is called in every step. A back end gets tensors and small frozen values, which `attention.py`,
`products.py`, `sampling.py` and `rows.py` define.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.attention import Cache, Copies, KvFormat, StepAttention, StepMetadata
from gpu_worker.kernels.products import (
    Absorbed,
    Clamped,
    Expert,
    Gated,
    Linear,
    Mixture,
    Norm,
    Route,
    Routing,
    Unary,
)
from gpu_worker.kernels.sampling import Allowed, Sampled, SamplingState


class Kernels(Protocol):
    """A back end. The others are tested against `kernels/reference`."""

    def enter(self) -> None:
        """Called once by the thread that computes steps, before its first step."""

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        """A product with weight [out, in] and bias [out]. Results have type `dtype`, by default the inputs'.

        `keeps_rows`: `Linear.rows` will be called.
        """

    @property
    def rough(self) -> Callable[[Tensor], Unary] | None:
        """As `linear` of a weight alone, with results of float32, for drafts: in less time, and less exact.
        None: there is none that is faster."""

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Gated:
        """Gated activation (Shazeer 2020): activation(gate) * up, of one product with weight [2 * out, in].

        The first half of the weight's rows is the gate, the second half up. `activation`: silu, gelu or
        gelu_tanh.
        """

    def absorbed(self, up_key: Tensor, up_value: Tensor) -> Absorbed:
        """The products of latent attention with up_key [heads, key size, row] and up_value [heads, row, value
        size]."""

    def mixture(self, experts: Iterable[Expert], count: int, activation: str | Clamped = "silu") -> Mixture:
        """A mixture of `count` experts. The next is taken from `experts` once the one before is laid out.

        `activation`: one of `gated`, gpt-oss's, or `UNGATED`. Either all experts have a bias, of up or of
        down, or none.
        """

    def route(self, routing: Routing, score_correction_bias: Tensor | None = None) -> Route:
        """Top-k routing. `score_correction_bias`: float32 [experts], added to scores to select experts, but
        not to routing weights."""

    def norm(self, weight: Tensor, eps: float) -> Norm:
        """RMS norm (Zhang and Sennrich 2019), computed in float32; weight [in].

        If the weight has the activations' type, normalized numbers are rounded to that type and then
        multiplied, as in Llama. If the weight is float32 and activations are narrower, they are multiplied
        and then rounded, as in Gemma.
        """

    def multiply(self, hidden: Tensor, gates: Tensor, activation: str) -> None:
        """hidden *= activation(gates), in place, computed in float32: [tokens, size] of one type each, whose
        rows may be parts of longer ones. `activation`: none, silu or sigmoid."""

    def activate(self, hidden: Tensor, activation: str) -> None:
        """hidden = activation(hidden), in place, computed in float32: [tokens, size], whose rows may be parts
        of longer ones. `activation`: silu, gelu, gelu_tanh, relu, relu2, sigmoid or tanh."""

    def add(self, into: Tensor, numbers: Tensor, gates: Tensor | None = None) -> None:
        """into += numbers, in place, rounded once: [tokens, size], each float32 or of the activations' type.

        `gates`: float32 [tokens, 1], whose sigmoids numbers are multiplied by.
        """

    def kv_format(self, name: str, dtype: torch.dtype) -> KvFormat:
        """How keys and values are kept. `name`: `kv_sizes.AUTO`, or one of `kv_sizes.ROW_BYTES` that the back
        end has. `dtype`: of the activations."""

    def begin(self, step: StepMetadata) -> StepAttention:
        """Prepare what all layers of a step share."""

    def copies(self, caches: Sequence[Cache]) -> Copies:
        """What copies blocks within the pages of these layers, which stay where they are."""

    def sample(
        self,
        logits: Tensor,
        slots: Int32s,
        device_slots: Tensor,
        positions: Int32s,
        state: SamplingState,
        allowed: Allowed | None = None,
    ) -> Sampled:
        """Choose a token for each row of logits, float32 [rows, vocab_size]: see `reference/sampling.py`.

        `allowed`: the tokens that grammars and rules allow, and biases; None if no row has any of these.
        """
