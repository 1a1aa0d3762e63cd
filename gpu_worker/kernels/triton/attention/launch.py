"""How a step's attention is cut into programs.

    short rows       decodes, drafts     a tile a row; contexts are split until the GPU is full
    longer rows      chunks              a list of tiles, made on the device

Two launches at most. Of a step that is recorded only the device will know how long its rows are: then both
are laid out for the most that there may be, and programs that have nothing before them end at once.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.attention import StepMetadata

SHORT = 64
"""Most rows of a tile that has all tokens of a sequence."""
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
    """int32 [n, 2]: row of the step, and first of its tokens; -1: none. None: the first rows are a tile each,
    but for those that do not fit into one."""
    count: int
    """Tiles."""
    step_tokens: int
    """Tokens up to the last that it computes."""
    tile_tokens: int
    """Tokens of a tile, at most."""
    size: int
    """Rows of a tile: a power of two, no less than its tokens times the query heads that share a key head."""
    longest: int
    """Context of any row."""

    def splits(self, kv_heads: int, in_window: int, processors: int) -> int:
        """Stretches that a context is cut into; a power of two. `in_window`: positions of it that count."""
        if self.tiles is not None:
            return 1
        useful = min(MOST_SPLITS, min(self.longest, in_window) // LEAST_STRETCH)
        wanted = -(-WAVES * processors // (self.count * kv_heads))
        return 1 << (max(1, min(useful, wanted)).bit_length() - 1)


def launches(step: StepMetadata, group: int, large: int) -> list[Launch]:
    """Of a step whose query heads share key heads by `group`. `large`: rows of a tile that is full.

    In this order: of what stands between them, the first leaves the tokens of longer rows to the second.
    """
    most = max(1, min(SHORT, large) // group)
    size = max(_power(group), large)
    tokens, longest = len(step.positions), max(step.context_lengths)
    if step.recorded:
        rows = len(step.query_lengths) - 1
        short = _short(rows, min(tokens, rows * most), most, group, longest)
        room = tokens // (size // group) + min(rows, tokens // (most + 1)) + 1
        return [short, _tiled(step, size, group, most, room)]
    lengths = np.array(step.query_lengths)
    fits = lengths <= most
    found = []
    if fits.any():
        last = int(np.flatnonzero(fits)[-1])
        farthest = int(np.array(step.context_lengths)[fits].max())
        found.append(
            _short(last + 1, int(lengths[: last + 1].sum()), int(lengths[fits].max()), group, farthest)
        )
    if not fits.all():
        count = int((-(-lengths[~fits] // (size // group))).sum())
        found.append(_tiled(step, size, group, most, count))
    return found


def _short(rows: int, step_tokens: int, tile_tokens: int, group: int, longest: int) -> Launch:
    return Launch(None, rows, step_tokens, tile_tokens, _power(max(LEAST, tile_tokens * group)), longest)


def _tiled(step: StepMetadata, size: int, group: int, most: int, room: int) -> Launch:
    """Tiles of the rows of more than `most` tokens, and of a recorded step's last row, which fills it up."""
    tokens = size // group
    lengths = step.query_starts.diff()
    chosen = lengths > most
    if step.recorded:
        chosen[-1:].fill_(True)
    counts = torch.where(chosen, (lengths + tokens - 1) // tokens, 0)
    ends = counts.cumsum(0)
    # The last first: the later a tile is in its sequence, the more it sees.
    numbers = torch.arange(room - 1, -1, -1, device=ends.device)
    rows = torch.searchsorted(ends, numbers, right=True)
    there = rows < len(lengths)
    rows = rows.clamp(max=len(lengths) - 1)
    firsts = torch.where(there, (numbers - (ends - counts)[rows]) * tokens, -1)
    tiles = torch.stack((rows, firsts), dim=1).int()
    return Launch(tiles, room, len(step.positions), tokens, size, max(step.context_lengths))


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()
