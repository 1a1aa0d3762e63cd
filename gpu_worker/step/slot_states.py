"""Which states the slots of a recurrent model have: rows are checked against it (`kernels/recurrence.py`)."""

import numpy as np
from numpy.typing import NDArray

from gpu_worker.arrays import Int32s


class SlotStates:
    """After how many tokens the newest state of each slot is."""

    def __init__(self, slots: int, block_size: int) -> None:
        self._block_size = block_size
        self.computed = np.zeros(slots, np.int32)
        """int32 [slots]: number of tokens; -1: no row of the slot's sequence has run."""

    def has(self, slots: Int32s, tokens: Int32s) -> NDArray[np.bool_]:
        """Whether each slot has the state after its first `tokens` tokens: the newest, or that of a full
        block."""
        computed = self.computed[slots]
        found: NDArray[np.bool_] = (tokens % self._block_size == 0) | (tokens == computed)
        return found | (computed < 0)

    def missing(self, slot: int, tokens: int) -> str:
        """What is wrong if the slot has not the state after its first `tokens` tokens; "" if it has it."""
        if self.has(*np.array([[slot], [tokens]], np.int32)):
            return ""
        return f"its state is that after {self.computed[slot]} tokens"
