"""What a recorded step reads, and where: int64 numbers, filled up to the sizes that were recorded.

Two kinds of step, rows of one token each and ragged ones:

    rows         0   1   2   3               4 recorded, 3 in the step
    slots      │ 5 │ 0 │ 2 │ 0 │             tokens and blocks are in the batch already
    contexts   │ 9 │ 4 │ 17│ 0 │             a row of no context attends to nothing

    rows         0     1     2     last      3 recorded, 2 in the step, and one for what is not needed
    tokens     │ a │ b c d │   │ · · · · │   8 recorded, 4 in the step: the others have no position,
    contexts   │ 9 │   3   │ 0 │    0    │   and are written nowhere
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
MOST_TOKENS = 1024
"""A step of more keeps the GPU busy for longer than its launches take, or nearly."""


class Layout(Protocol):
    """Where a recorded step of some size reads its numbers."""

    @property
    def tokens(self) -> int:
        """Tokens that there is room for."""

    def holds(self, rows: int, tokens: int) -> bool:
        """Whether there is room for a step of this number of rows and tokens."""

    def numbers(self, rows: Rows) -> NDArray[np.int64]:
        """The step's own numbers, int64, flat or in rows of equal length; the rest is recorded."""

    def slots(self, given: Tensor) -> Tensor:
        """The part of the numbers, on the device, that has the rows' slots; int64."""

    def metadata(self, given: Tensor, tables: SlotTables) -> tuple[Tensor, StepMetadata]:
        """Token ids, int32 [tokens], and where they are, all of it read from the numbers and the tables."""


@dataclass(frozen=True, slots=True)
class OneEach:
    """Rows of one token each: decodes."""

    tokens: int

    def holds(self, rows: int, tokens: int) -> bool:
        return rows == tokens <= self.tokens

    def numbers(self, rows: Rows) -> NDArray[np.int64]:
        numbers = np.zeros((2, self.tokens), np.int64)
        numbers[:, : len(rows.slots)] = rows.slots, rows.starts + 1
        return numbers

    def slots(self, given: Tensor) -> Tensor:
        return given[0]

    def metadata(self, given: Tensor, tables: SlotTables) -> tuple[Tensor, StepMetadata]:
        slots, contexts = given
        positions = (contexts - 1).clamp(min=0)
        tokens, entries = tables.places(slots, positions)
        return tokens, StepMetadata(
            decodes=self.tokens,
            query_lengths=(1,) * self.tokens,
            context_lengths=(tables.max_model_len,) * self.tokens,  # by which launches are laid out
            query_starts=torch.arange(self.tokens + 1, dtype=torch.int32, device=given.device),
            contexts=contexts.int(),
            block_tables=tables.blocks[slots],
            positions=positions,
            kv_entries=entries.masked_fill(contexts == 0, -1),
        )


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of any lengths: chunks of prompts, drafts, and decodes beside these."""

    tokens: int
    rows: int

    def holds(self, rows: int, tokens: int) -> bool:
        return rows <= self.rows and tokens <= self.tokens

    def numbers(self, rows: Rows) -> NDArray[np.int64]:
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

    def slots(self, given: Tensor) -> Tensor:
        parts: tuple[Tensor, ...] = given.split(self._parts)
        return parts[2]

    def metadata(self, given: Tensor, tables: SlotTables) -> tuple[Tensor, StepMetadata]:
        slots, positions, row_slots, contexts, starts = given.split(self._parts)
        known = positions.clamp(min=0)
        tokens, entries = tables.places(slots, known)
        return tokens, StepMetadata(
            decodes=0,
            query_lengths=(self.tokens,) * (self.rows + 1),
            context_lengths=(tables.max_model_len,) * (self.rows + 1),
            query_starts=starts.int(),
            contexts=contexts.int(),
            block_tables=tables.blocks[row_slots],
            positions=known,
            kv_entries=entries.masked_fill(positions < 0, -1),
            recorded=True,
        )

    @property
    def _parts(self) -> list[int]:
        """Slots and positions of tokens; slots, contexts and beginnings of rows."""
        return [self.tokens, self.tokens, self.rows + 1, self.rows + 1, self.rows + 2]


def layouts_for(max_slots: int, max_step_tokens: int) -> list[Layout]:
    """The layouts to record. A step goes to the first of them that has room for it.

    Products of many tokens are computed 64 or 128 at a time anyway.
    """
    rows, tokens = min(max_slots, MOST_ROWS), min(max_step_tokens, MOST_TOKENS)
    one_each = (OneEach(size) for size in up_to(rows, decode_sizes()))
    ragged = (
        Ragged(size, held)
        for size in up_to(tokens, (8, 16, 32, 64, 128, 192, *range(256, MOST_TOKENS, 128)))
        for held in up_to(min(rows, size), (4, 16, 64))
    )
    return [*one_each, *ragged]


def decode_sizes() -> Iterator[int]:
    """All up to 16, then four to each doubling: no step is filled up by more than a quarter.

    Filling costs little, except with experts: it may select experts that no other token has selected.
    """
    yield from range(1, 16)
    for power in (16, 32, 64, 128):
        yield from (power * quarter // 4 for quarter in (4, 5, 6, 7))


def up_to(most: int, sizes: Iterable[int]) -> list[int]:
    """The sizes below `most`, and that."""
    return [*(size for size in sizes if size < most), most]
