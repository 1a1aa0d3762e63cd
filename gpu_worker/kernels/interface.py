"""What decoders are computed with: one small interface, and a back end for each kind of device.

A back end takes each weight once, when the model is loaded, and may lay it out as it likes; what it
gives back is called at every step and looks nothing up any more. It sees tensors and small frozen values:
of `attention.py`, `products.py`, `sampling.py` and `rows.py`.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.attention import Copies, KvFormat, LayerCache, StepAttention, StepMetadata
from gpu_worker.kernels.products import Linear, Mixture, Norm, Route, Routing, Unary
from gpu_worker.kernels.sampling import Sampled, SamplingState


class Kernels(Protocol):
    """A back end. The others are tested against `kernels/reference`."""

    def enter(self) -> None:
        """Called once by the thread that will compute from now on, before anything else."""

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        """Products with weight [out, in] and bias [out]; results of type `dtype`, by default the inputs'.

        `keeps_rows`: its `rows` will be asked for.
        """

    def gated(self, weight: Tensor, bias: Tensor | None = None, activation: str = "silu") -> Unary:
        """Gated activation (Shazeer 2020): activation(gate) * up of one product with weight [2 * out, in].

        The first half of the rows are the gate's. `activation`: silu, gelu or gelu_tanh.
        """

    def mixture(
        self, experts: Iterable[tuple[Tensor, Tensor]], count: int, activation: str = "silu"
    ) -> Mixture:
        """A mixture of `count` experts.

        An expert is two weights: gate and up [2 * inner, size], as `gated` takes them, and down [size,
        inner]. The next expert is taken from `experts` once the one before is laid out.
        """

    def route(self, routing: Routing, score_correction_bias: Tensor | None = None) -> Route:
        """Top-k routing. `score_correction_bias`: float32 [experts], added to scores to select experts, but
        not to routing weights."""

    def norm(self, weight: Tensor, eps: float) -> Norm:
        """Root mean square normalization (Zhang and Sennrich 2019), computed in float32; weight [in].

        A weight of the activations' type multiplies what was rounded to it, as in Llama. One of float32
        beside activations of a narrower type multiplies before, as in Gemma: rounded once, at the end.
        """

    def kv_format(self, name: str, dtype: torch.dtype) -> KvFormat:
        """How keys and values are kept. `name`: `kv_sizes.AUTO`, or one of `kv_sizes.ROW_BYTES` that the back
        end has. `dtype`: of the activations."""

    def begin(self, step: StepMetadata) -> StepAttention:
        """Prepare what all layers of a step share."""

    def copies(self, caches: Sequence[LayerCache]) -> Copies:
        """What copies blocks within the pages of these layers, which stay where they are."""

    def sample(
        self, logits: Tensor, slots: Int32s, device_slots: Tensor, positions: Int32s, state: SamplingState
    ) -> Sampled:
        """Choose a token for each row of logits, float32 [rows, vocab_size]: see `reference/sampling.py`."""
