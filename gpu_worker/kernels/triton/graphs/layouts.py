"""The layouts of recorded steps: the inputs that a CUDA graph reads, as int64 numbers, padded to its size.

A decode layout has rows of one token each. The GPU has a table of each slot's tokens and blocks, so that two
numbers are enough to describe a row: its slot and its context length. A row of padding has context length 0
and attends to nothing:

    rows         0   1   2   3               4 rows recorded, 3 in the step
    slots      │ 5 │ 0 │ 2 │ 0 │
    contexts   │ 9 │ 4 │ 17│ 0 │

A ragged layout has rows of any lengths. One more row takes the tokens of padding. These have no position, and
their keys and values are not written:

    rows         0     1     2     last      3 rows recorded, 2 in the step
    tokens     │ a │ b c d │   │ · · · · │   8 tokens recorded, 4 in the step
    contexts   │ 9 │   3   │ 0 │    0    │
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.kernels.attention import StepMetadata
from gpu_worker.kernels.rows import Rows, SlotTables

MOST_ROWS = 256
"""Rows of the largest decode layout."""
MOST_TOKENS = 1024
"""Tokens of the largest ragged layout. A larger step computes for about as long as its launches take."""


class Layout(Protocol):
    """The size of a recorded step, and the layout of its inputs."""

    @property
    def tokens(self) -> int:
        """Tokens of the recorded step."""

    def fits(self, rows: int, tokens: int) -> bool:
        """Whether a step of `rows` rows and `tokens` tokens can be computed with this layout."""

    def inputs(self, rows: Rows) -> NDArray[np.int64]:
        """The inputs of a step with these rows, int64 on the host, padded to the recorded size."""

    def slots(self, inputs: Tensor) -> Tensor:
        """The part of `inputs`, on the device, that has the rows' slots: int64."""

    def metadata(self, inputs: Tensor, tables: SlotTables) -> tuple[Tensor, StepMetadata]:
        """Token ids int32 [tokens] and the step's metadata, computed on the device from its inputs."""


@dataclass(frozen=True, slots=True)
class DecodeLayout:
    """Rows of one token each: decodes. `inputs` is [2, tokens]: slots, then contexts."""

    tokens: int
    """Rows of the recorded step, with one token each."""

    def fits(self, rows: int, tokens: int) -> bool:
        return rows == tokens <= self.tokens

    def inputs(self, rows: Rows) -> NDArray[np.int64]:
        numbers = np.zeros((2, self.tokens), np.int64)
        numbers[:, : len(rows.slots)] = rows.slots, rows.starts + 1
        return numbers

    def slots(self, inputs: Tensor) -> Tensor:
        return inputs[0]

    def metadata(self, inputs: Tensor, tables: SlotTables) -> tuple[Tensor, StepMetadata]:
        slots, contexts = inputs
        positions = (contexts - 1).clamp(min=0)
        tokens, entries = tables.lookup(slots, positions)
        return tokens, StepMetadata(
            decodes=self.tokens,
            query_lengths=(1,) * self.tokens,
            context_lengths=(tables.max_model_len,)
            * self.tokens,  # for the size of launches: any context must fit
            query_starts=torch.arange(self.tokens + 1, dtype=torch.int32, device=inputs.device),
            contexts=contexts.int(),
            block_tables=tables.blocks[slots],
            positions=positions,
            kv_entries=entries.masked_fill(contexts == 0, -1),
            turned=tables.turned(slots, positions),
        )


@dataclass(frozen=True, slots=True)
class RaggedLayout:
    """Rows of any lengths: chunks of prompts, drafts, and decodes. `inputs` is flat: see `_parts`."""

    tokens: int
    """Tokens of the recorded step."""
    rows: int
    """Rows of the recorded step, without the row for padding."""

    def fits(self, rows: int, tokens: int) -> bool:
        return rows <= self.rows and tokens <= self.tokens

    def inputs(self, rows: Rows) -> NDArray[np.int64]:
        count, tokens = len(rows.slots), int(rows.counts.sum())
        numbers = np.zeros(sum(self._parts), np.int64)
        slots, positions, row_slots, contexts, starts = np.split(numbers, np.cumsum(self._parts)[:-1])
        slots[:tokens], positions[:tokens], starts[: count + 1] = rows.tokens()
        row_slots[:count] = rows.slots
        contexts[:count] = rows.starts + rows.counts
        positions[tokens:] = -1
        starts[count + 1 : -1] = tokens
        starts[-1] = self.tokens
        return numbers

    def slots(self, inputs: Tensor) -> Tensor:
        parts: tuple[Tensor, ...] = inputs.split(self._parts)
        return parts[2]

    def metadata(self, inputs: Tensor, tables: SlotTables) -> tuple[Tensor, StepMetadata]:
        slots, positions, row_slots, contexts, starts = inputs.split(self._parts)
        known = positions.clamp(min=0)
        tokens, entries = tables.lookup(slots, known)
        return tokens, StepMetadata(
            decodes=0,
            query_lengths=(self.tokens,) * (self.rows + 1),
            context_lengths=(tables.max_model_len,) * (self.rows + 1),
            query_starts=starts.int(),
            contexts=contexts.int(),
            block_tables=tables.blocks[row_slots],
            positions=known,
            kv_entries=entries.masked_fill(positions < 0, -1),
            turned=tables.turned(slots, known),
            recorded=True,
        )

    @property
    def _parts(self) -> list[int]:
        """Lengths of the inputs: slot and position of tokens; slot, context and first token of rows."""
        return [self.tokens, self.tokens, self.rows + 1, self.rows + 1, self.rows + 2]


def layouts_for(max_slots: int, max_step_tokens: int) -> list[Layout]:
    """The layouts to record, in the order of search: a step takes the first one into which it fits.

    Steps of many tokens need few sizes, because matrix products compute 64 or 128 tokens at a time anyway.
    """
    rows, tokens = min(max_slots, MOST_ROWS), min(max_step_tokens, MOST_TOKENS)
    one_each = (DecodeLayout(size) for size in up_to(rows, decode_sizes()))
    ragged = (
        RaggedLayout(size, held)
        for size in up_to(tokens, (8, 16, 32, 64, 128, 192, *range(256, MOST_TOKENS, 128)))
        for held in up_to(min(rows, size), (4, 16, 64))
    )
    return [*one_each, *ragged]


def decode_sizes() -> Iterator[int]:
    """All sizes up to 16, then four for each doubling: at most a quarter of the step's size is padding.

    Padding costs little, except with experts: it may select experts that no other token has selected.
    """
    yield from range(1, 16)
    for power in (16, 32, 64, 128):
        yield from (power * quarter // 4 for quarter in (4, 5, 6, 7))


def up_to(most: int, sizes: Iterable[int]) -> list[int]:
    """The sizes below `most`, then `most`."""
    return [*(size for size in sizes if size < most), most]
