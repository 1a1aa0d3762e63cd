"""Who makes way for a sequence that waits."""

from scheduler_svc.core.batch import Batch
from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import Sequence


def making_way(batch: Batch, policy: Policy, candidate: Sequence) -> list[Sequence]:
    """The running sequences to preempt so that the candidate finds a slot and blocks: youngest first.

    Nobody if there is room already, or if there would be none even without all who yield. Blocks that
    are shared are not counted on: neither those of a cached prefix, nor those that several victims share.
    """
    if not policy.preempts:
        return []
    free = batch.pool.free_blocks
    needed = batch.limits.blocks_at_once(len(candidate.tokens)) + batch.reserved()
    slots, victims = len(batch.free_slots), list[Sequence]()
    for sequence in reversed(batch.running):
        if slots and free >= needed:
            return victims
        if policy.yields(sequence, candidate) and not sequence.about_to_end:
            assert sequence.table is not None
            victims.append(sequence)
            slots += 1
            free += sequence.table.own_blocks()
            needed -= batch.reserved_for(sequence)
    # Into an empty batch whatever was accepted fits.
    return victims if slots and (free >= needed or len(victims) == len(batch.running)) else []
