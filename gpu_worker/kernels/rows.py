"""The rows of a step, and the slot-indexed tables that their tokens and blocks are in."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.arrays import Int32s


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a step that can run, on the host; those with the fewest tokens first."""

    index: NDArray[np.intp]
    """[rows]: index of each in the plan."""
    slots: Int32s
    """[rows]: batch slot of each."""
    starts: Int32s
    """[rows]: position of each row's first token in its sequence."""
    counts: Int32s
    """[rows]: tokens of each, at least 1."""
    samples: Int32s
    """[rows]: tokens to sample, after each row's last positions."""

    @property
    def drafted(self) -> NDArray[np.bool_]:
        """[rows]: which rows have drafts, which are their last tokens."""
        found: NDArray[np.bool_] = self.samples > 1
        return found

    def tokens(self) -> tuple[Int32s, NDArray[np.int64], NDArray[np.int64]]:
        """Slot and position of each token, [tokens] each, and where each row's tokens begin, [rows + 1]."""
        begins = np.zeros(len(self.counts) + 1, np.int64)
        np.cumsum(self.counts, out=begins[1:])
        positions = np.arange(begins[-1]) - np.repeat(begins[:-1] - self.starts, self.counts)
        return np.repeat(self.slots, self.counts), positions, begins


@dataclass(frozen=True, slots=True)
class SlotTables:
    """Tokens and blocks of every slot, on the device. Plans change their contents; the tensors stay."""

    tokens: Tensor
    """int32 [slots, max_model_len + 1]: tokens of each slot, drafts behind the known ones."""
    blocks: Tensor
    """int32 [slots, max_blocks]: the block table of each slot."""
    block_size: int
    """Tokens of a block."""
    shifts: Tensor | None = None
    """int64 [slots]: what is added to positions behind images for rotary embeddings. None: nothing is."""

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence."""
        return self.tokens.shape[1] - 1

    def turned(self, slots: Tensor, positions: Tensor) -> Tensor | None:
        """`StepMetadata.turned` of tokens at positions of slots, behind all images. Padding is at position 0
        of a slot that may have some."""
        return None if self.shifts is None else (positions + self.shifts[slots]).clamp(min=0)

    def lookup(self, slots: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids at positions of slots, int32 [n], and their entries in the pages, int64 [n].

        All on the device; slots and positions int64 [n].
        """
        size = self.block_size
        blocks = self.blocks[slots, positions // size].long()
        return self.tokens[slots, positions], blocks * size + positions % size
