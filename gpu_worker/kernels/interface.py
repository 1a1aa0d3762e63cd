"""What decoders are computed with: one small interface, and a back end for each kind of device.

A step's tokens form one ragged batch, row after row:

    row             0   1   2           3
    tokens        │ a │ b │ c d e f g │ h i │          no padding, no batch dimension
    query_starts    0   1   2           7     9
                  └─────┘ the first `decodes` rows have one token each; chunks of prefills follow

A token's key and value go to entry `kv_entries[t]` of the layer's pages: block * block_size + offset
within the block.

A back end takes each weight once, when the model is loaded, and may lay it out as it likes; what it
gives back is called at every step and looks nothing up any more.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.kv_sizes import PageShape
from gpu_worker.kernels.sampling import Sampled, SamplingState

Places = tuple[Tensor, slice, Tensor]
"""Blocks, all heads, offsets in the blocks: where rows are in pages."""

Take = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Gives an uninitialized tensor of a shape and a type, in memory for pages."""


class KvFormat(Protocol):
    """One way to keep keys and values in pages, as one back end computes with it.

    `name`: of the format, or of the type of the activations if they are kept as they are: see `kv_sizes.py`.
    `largest`: the largest number of a format whose heads have one scale each for all time, which must be
    known before the first request (`startup/calibration.py`); None: there is nothing to know.
    """

    name: str
    largest: float | None

    def token_bytes(self, shape: PageShape) -> int:
        """Bytes that one token takes in the pages of one layer."""

    def allocate(self, shape: PageShape, blocks: int, block_size: int, take: Take) -> "LayerCache":
        """The pages of one layer, uninitialized. Scales of heads are 1 until `set_scales`."""

    def in_blocks(self, cache: "LayerCache") -> list[Tensor]:
        """Tensors that together hold all blocks, of types that any device can copy. Their first dimension is
        the block."""

    def set_scales(self, cache: "LayerCache", scales: Tensor) -> None:
        """Set the scales of heads, float32 [2, kv_heads]: of keys, then of values. The format must have a
        `largest` number."""

    def store(self, cache: "LayerCache", places: Places, keys: Tensor, values: Tensor | None = None) -> None:
        """Put keys and values [..., kv_heads, size] into pages that lie row by row. Shared pages take keys
        alone."""

    def load(self, cache: "LayerCache", places: Places, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values [..., kv_heads, size] from pages that lie row by row, rounded to `dtype`."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The pages of one layer."""

    format: KvFormat
    """What the pages' contents mean."""
    shape: PageShape
    """What a token leaves in them."""
    keys: Tensor
    """[num_blocks, kv_heads, block_size, ...]: what one head keeps of a block lies side by side."""
    values: Tensor
    """As `keys`; the same tensor if pages are shared."""
    key_scales: Tensor | None = None
    """What the format keeps beside the numbers of keys, in a shape of its own; None: nothing."""
    value_scales: Tensor | None = None
    """As `key_scales`, of values; the same tensor if pages are shared."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.keys.shape[2]

    def tensors(self) -> list[Tensor]:
        """See `KvFormat.in_blocks`."""
        return self.format.in_blocks(self)


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """Where the tokens of a step are. Tensors are on the device, tuples on the host."""

    decodes: int
    """How many rows, all at the beginning, have exactly one token."""
    query_lengths: tuple[int, ...]
    """Tokens of each row in this step."""
    context_lengths: tuple[int, ...]
    """Tokens of each row's sequence up to the end of this step; those of this step included."""
    query_starts: Tensor
    """int32 [rows + 1]: where each row's tokens begin."""
    contexts: Tensor
    """int32 [rows]: `context_lengths`."""
    block_tables: Tensor
    """int32 [rows, blocks]: each row's blocks; past a row's context the entries mean nothing."""
    positions: Tensor
    """int64 [tokens]: each token's position in its sequence."""
    kv_entries: Tensor
    """int64 [tokens]: where each token's key and value go; -1: nowhere."""
    recorded: bool = False
    """The step will be replayed with other numbers in its tensors. Those in tuples are the most that there
    may be of each row; a last row, of no context, has the tokens that are not needed."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """Tables of a rotary position embedding: pairs of dimensions (i, i + head_dim / 2) are rotated."""

    cos: Tensor
    """float32 [positions, head_dim / 2]."""
    sin: Tensor
    """float32 [positions, head_dim / 2]."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What a query sees of its context, and how; each layer may have its own."""

    window: int = 0
    """Positions, its own included; 0: all before it."""
    sinks: int = 0
    """First positions of a sequence that stay visible beside a window (Xiao et al. 2024)."""
    softcap: float = 0.0
    """Scores x become softcap * tanh(x / softcap), as in Gemma 2; 0: they stay as they are."""
    scale: float | None = None
    """What products of queries and keys are multiplied by; None: 1/sqrt(head_dim)."""


FULL_ATTENTION = AttentionSpec()


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


class StepAttention(Protocol):
    """Attention within one step; the same for every layer but for what that sees."""

    positions: Tensor
    """See `StepMetadata`."""

    def rotate_and_write(self, qkv: Tensor, rotary: Rotary, cache: LayerCache) -> Tensor:
        """Rotate queries and keys by their positions, put keys and values into the pages.

        `qkv`: [tokens, (heads + 2 * kv_heads) * head_dim], queries first. Returns the queries,
        [tokens, heads, head_dim].
        """

    def write_latent(self, query: Tensor, latent: Tensor, rotary: Rotary, cache: LayerCache) -> None:
        """As `rotate_and_write`, for shared pages: put rows, latent [tokens, head_dim], into them.

        First the last numbers of the rows and of queries [tokens, heads, head_dim], as many as `rotary` has,
        are rotated in place.
        """

    def attend(
        self,
        query: Tensor,
        cache: LayerCache,
        spec: AttentionSpec = FULL_ATTENTION,
        slopes: Tensor | None = None,
    ) -> Tensor:
        """[tokens, heads, head_dim] to [tokens, heads * value_size]: causal attention, each row over the
        visible part of its own context.

        `slopes`: float32 [heads], of linear biases (Press et al. 2022): the score of a key n positions
        before the query becomes smaller by n times its head's slope. Shared pages have none.

        Whatever lies in pages beyond a row's context or outside its window never reaches the row's output. A
        block that is outside the window of all of a row's tokens is not even looked up, unless there are
        sinks.
        """


class Linear(Protocol):
    """A product with weights [out, in], and a bias if there is one."""

    def __call__(self, hidden: Tensor, /) -> Tensor:
        """[tokens, in] to [tokens, out]."""

    def add_to(self, hidden: Tensor, residual: Tensor, /) -> None:
        """Add the product of hidden [tokens, in] to residual [tokens, out], in place."""

    def rows(self, numbers: Tensor, /) -> Tensor:
        """Rows of the weights, [n, in], for numbers int32 or int64 [n]: what an embedding looks up."""


class Unary(Protocol):
    """What maps [tokens, in] to [tokens, out]."""

    def __call__(self, hidden: Tensor, /) -> Tensor: ...


class Norm(Unary, Protocol):
    """See `Kernels.norm`. What comes of a row [in] depends on that row alone."""

    def each(self, rows: Tensor, /) -> None:
        """Normalize in place, each n-th of a row by itself: [tokens, n * in], maybe a part of wider rows."""


class Route(Protocol):
    """Selects the experts of each token."""

    def __call__(self, router_logits: Tensor, /) -> tuple[Tensor, Tensor]:
        """Router logits, float32 [tokens, experts], to routing weights, float32, and selected experts, int64,
        both [tokens, experts_per_token]."""


class Mixture(Protocol):
    """The experts of a layer."""

    def __call__(self, hidden: Tensor, routing_weights: Tensor, selected_experts: Tensor, /) -> Tensor:
        """hidden [tokens, size] to float32 of the same shape: the weighted sum of each token's experts.

        `routing_weights`: float32, `selected_experts`: int64, both [tokens, experts_per_token]. The experts
        of a token are distinct.
        """


class Copies(Protocol):
    """Copies whole blocks within every layer."""

    def __call__(self, sources: Tensor, targets: Tensor, /) -> None:
        """Block numbers int64 [n] each, no target among the sources."""


class Kernels(Protocol):
    """A back end. `kernels/reference.py` is the one that the others are tested against."""

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
