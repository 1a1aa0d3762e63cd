"""Decodes of equal length side by side."""

from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import Sequence


class BlockCount(Policy):
    """First come, first served; a step's decodes are grouped by the number of their blocks.

    A kernel that gives neighbouring rows to one group of threads keeps none of them waiting for a long one.
    """

    steady = False

    def decodes(self, sequences: list[Sequence]) -> list[Sequence]:
        return sorted(sequences, key=_blocks)


def _blocks(sequence: Sequence) -> int:
    assert sequence.table is not None
    return len(sequence.table.blocks)
