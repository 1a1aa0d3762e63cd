"""Decodes of similar length side by side."""

from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import Sequence


class BlockCount(Policy):
    """First come, first served. A step's decodes are ordered by the number of their blocks.

    So a kernel that gives neighbouring rows to one group of threads lets no short row wait for a long one.
    """

    def decodes(self, sequences: list[Sequence]) -> list[Sequence]:
        return sorted(sequences, key=_blocks)


def _blocks(sequence: Sequence) -> int:
    assert sequence.table is not None
    return len(sequence.table.blocks)
