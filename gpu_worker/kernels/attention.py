"""Pages of keys and values, and attention over them: values and protocols.

A step's tokens form one ragged batch, row after row:

    row             0   1   2           3
    tokens        │ a │ b │ c d e f g │ h i │          no padding, no batch dimension
    query_starts    0   1   2           7     9
                  └─────┘ the first `decodes` rows have one token each; chunks of prefills follow

A token's key and value go to entry `kv_entries[t]` of the layer's pages: block * block_size + offset
within the block.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.kernels.kv_sizes import PageShape
from gpu_worker.kernels.recurrence import StateCache, StepRecurrence

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
    index: "LayerCache | None" = None
    """Pages of index keys, in which the layer's indexer finds the tokens to attend to. None: the layer has no
    indexer."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.keys.shape[2]

    def tensors(self) -> list[Tensor]:
        """See `KvFormat.in_blocks`."""
        return self.format.in_blocks(self)


Cache = LayerCache | StateCache
"""What one layer keeps in blocks."""


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
    turned: Tensor | None = None
    """int64 [tokens]: the line of rotary embeddings' tables by which each token is turned. None: that of its
    position."""
    drafted: tuple[bool, ...] = ()
    """Which rows leave states as they are, because they have drafts: see `kernels/recurrence.py`. Empty: none
    does."""
    recorded: bool = False
    """The step will be replayed with other numbers in its tensors. Those in tuples are the most that there
    may be of each row; a last row, of no context, has the tokens that are not needed."""

    @property
    def lines(self) -> Tensor:
        """int64 [tokens]: `turned`, or positions."""
        return self.positions if self.turned is None else self.turned


@dataclass(frozen=True, slots=True)
class Rotary:
    """Tables of a rotary position embedding: pairs of dimensions (i, i + head_dim / 2) are rotated."""

    cos: Tensor
    """float32 [positions, head_dim / 2]. There may be further lines, for tokens of images."""
    sin: Tensor
    """As `cos`."""
    query_scales: Tensor | None = None
    """float32 [positions]: factors of rotated queries. None: 1. The layer multiplies by them, not the back
    end."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What a query sees of its context, and how; each layer may have its own."""

    window: int = 0
    """Positions, its own included; 0: all before it."""
    sinks: int = 0
    """First positions of a sequence that stay visible beside a window (Xiao et al. 2024)."""
    softcap: float = 0.0
    """Scores x become softcap * tanh(x / softcap), as in Gemma 2; 0: they stay as they are."""
    chunk: int = 0
    """Positions of a chunk. A token sees its own chunk alone, as in Llama 4; 0: there are no chunks. A layer
    has either chunks or a window."""
    scale: float | None = None
    """What products of queries and keys are multiplied by; None: 1/sqrt(head_dim)."""


FULL_ATTENTION = AttentionSpec()


class StepAttention(StepRecurrence, Protocol):
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
        sink_logits: Tensor | None = None,
    ) -> Tensor:
        """[tokens, heads, head_dim] to [tokens, heads * value_size]: causal attention, each row over the
        visible part of its own context.

        `slopes`: float32 [heads], of linear biases (Press et al. 2022): the score of a key n positions
        before the query becomes smaller by n times its head's slope. Shared pages have none.

        `sink_logits`: float32 [heads], of learned attention sinks, as in gpt-oss. Each head has one more
        score in its softmax, of a value that is 0. Shared pages have none.

        Whatever lies in pages beyond a row's context or outside its window never reaches the row's output. A
        block that is outside the window of all of a row's tokens is not even looked up, unless there are
        sinks.
        """

    def select(self, query: Tensor, weights: Tensor, cache: LayerCache, top_k: int) -> None:
        """Select the tokens that `attend_selected` will attend to: see `reference/selection.py`.

        A token selects the `top_k` tokens of its context with the highest index scores, or all tokens of a
        shorter context. The index score of a token with index key k is the sum over heads of weight *
        relu(query · k) (DeepSeek-V3.2, section 2.1). `query`: [tokens, heads, head_dim]. `weights`: float32
        [tokens, heads]. `cache`: shared pages of index keys.
        """

    def attend_selected(self, query: Tensor, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        """As `attend`, over shared pages, to the tokens of the latest selection of this step."""


class Copies(Protocol):
    """Copies whole blocks within every layer."""

    def __call__(self, sources: Tensor, targets: Tensor, /) -> None:
        """Block numbers int64 [n] each, no target among the sources."""
