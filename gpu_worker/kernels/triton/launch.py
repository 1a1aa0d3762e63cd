"""How a step's attention is cut into programs.

    every row is short       decodes, drafts     a tile a row; contexts are split until the GPU is full
    some rows are chunks     mixed batches       one list of tiles, those with most to do first

Decodes whose contexts are longer than those of all chunks beside them would be the last to end: they are
split too, in a launch of their own.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.interface import StepMetadata
from gpu_worker.transfer import to_device

SHORT = 64
"""Rows of a tile up to which all tokens of a sequence are one tile, if it can have so many."""
LEAST = 16
"""Rows that a product of matrices has at least."""
MOST_SPLITS = 64
LEAST_STRETCH = 256
"""Positions; to combine shorter stretches would cost more than it saves."""
WAVES = 4
"""Programs for each processor of the GPU that a split aims at."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """What a program has before it at a time, and with how many hands. Changes times, not results."""

    keys: int
    """Positions; a power of two."""
    warps: int
    stages: int
    """Tiles of keys on their way at once, counted as Triton does."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Rows that one launch computes."""

    tiles: Tensor | None
    """int32 [n, 2]: row of the step, and first of its tokens. None: the first rows are a tile each."""
    count: int
    """Tiles."""
    step_tokens: int
    """Tokens of all its rows."""
    tile_tokens: int
    """Tokens of a tile, at most."""
    size: int
    """Rows of a tile: a power of two, no less than its tokens times the query heads that share a key head."""
    longest: int
    """Context of any row."""

    def splits(self, kv_heads: int, in_sight: int, processors: int) -> int:
        """Stretches that a context is cut into; a power of two. `in_sight`: positions of it that count."""
        if self.tiles is not None:
            return 1
        useful = min(MOST_SPLITS, min(self.longest, in_sight) // LEAST_STRETCH)
        wanted = -(-WAVES * processors // (self.count * kv_heads))
        return 1 << (max(1, min(useful, wanted)).bit_length() - 1)


def launches(step: StepMetadata, group: int, large: int) -> list[Launch]:
    """Of a step whose query heads share key heads by `group`. `large`: rows of a tile that is full."""
    lengths, contexts = step.query_lengths, step.context_lengths
    longest = max(lengths)
    if longest == 1 or longest * group <= min(SHORT, large):
        return [_whole_rows(lengths, contexts, group)]
    alone = step.decodes
    if alone and max(contexts[:alone]) <= max(contexts[alone:]):
        alone = 0
    whole = [_whole_rows(lengths[:alone], contexts[:alone], group)] if alone else []
    return [*whole, _tiled(step, alone, group, large)]


def _whole_rows(lengths: tuple[int, ...], contexts: tuple[int, ...], group: int) -> Launch:
    tokens = max(lengths)
    size = _power(max(LEAST, tokens * group))
    return Launch(None, len(lengths), sum(lengths), tokens, size, max(contexts))


def _tiled(step: StepMetadata, first: int, group: int, large: int) -> Launch:
    """The rows from `first` on, cut into tiles."""
    lengths = np.array(step.query_lengths[first:])
    contexts = np.array(step.context_lengths[first:])
    size = max(_power(group), large)
    tokens = size // group
    counts = -(-lengths // tokens)
    rows = np.repeat(np.arange(len(lengths)), counts)
    begins = (np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)) * tokens
    # The later a tile is in its sequence, the more it sees.
    ends = contexts[rows] - lengths[rows] + begins + tokens
    order = np.argsort(-ends, kind="stable")
    tiles = np.stack((rows[order] + first, begins[order]), axis=1).astype(np.int32)
    sent = to_device(torch.from_numpy(tiles), step.contexts.device)
    return Launch(sent, len(tiles), int(lengths.sum()), tokens, size, int(contexts.max()))


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()
