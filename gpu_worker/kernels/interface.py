"""What an attention back end is: how keys and values get into pages, and how queries read them.

A step's tokens form one ragged batch, row after row:

    row             0   1   2           3
    tokens        │ a │ b │ c d e f g │ h i │          no padding, no batch dimension
    query_starts    0   1   2           7     9
                  └─────┘ the first `decodes` rows have one token each; chunks of prefills follow

A token's key and value go to entry `kv_entries[t]` of the layer's pages, seen as a flat array of
entries: block * block_size + offset within the block.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The pages of one layer."""

    keys: Tensor
    """[num_blocks, block_size, kv_heads, head_dim]."""
    values: Tensor
    """[num_blocks, block_size, kv_heads, head_dim]."""


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
    """int64 [tokens]: where each token's key and value go."""


class StepAttention(Protocol):
    """Attention within one step; the same for every layer."""

    def write_kv(self, key: Tensor, value: Tensor, cache: LayerCache) -> None:
        """Put the tokens' keys and values, [tokens, kv_heads, head_dim], into the pages."""

    def attend(self, query: Tensor, cache: LayerCache) -> Tensor:
        """[tokens, heads, head_dim] to the same: causal attention over each row's own context.

        Scores are scaled by 1/sqrt(head_dim). What lies in pages beyond a row's context, whatever
        it is, never reaches the row's output.
        """


class AttentionBackend(Protocol):
    """A way to compute attention. `kernels/reference.py` is the one that others are tested against."""

    def begin(self, step: StepMetadata) -> StepAttention:
        """Prepare what all layers of a step share."""


def flat(pages: Tensor) -> Tensor:
    """Pages as a flat array of entries: [num_blocks * block_size, kv_heads, head_dim]."""
    return pages.view(torch.Size((-1, *pages.shape[2:])))
