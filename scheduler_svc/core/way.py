"""Who makes way for a sequence that waits."""

from scheduler_svc.core.batch import Batch
from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import Sequence, State


def making_way(batch: Batch, policy: Policy, candidate: Sequence, watermark: int) -> list[Sequence]:
    """The running sequences to preempt so that the candidate finds a slot and blocks: youngest first.

    Nobody if there is room already, or if there would be none even without all who yield. Blocks that
    are shared are not counted on: neither those of a cached prefix, nor those that several victims share.
    """
    if not policy.preempts:
        return []
    limits, free = batch.limits, batch.pool.free_blocks
    # Of the blocks that running prefills have yet to take, a victim's are not needed any more.
    promised = {
        sequence: batch.to_take(sequence) for sequence in batch.running if sequence.state is State.PREFILL
    }
    needed = limits.blocks_at_once(len(candidate.tokens)) + watermark + sum(promised.values())
    slots, victims = len(batch.free_slots), list[Sequence]()
    for sequence in reversed(batch.running):
        if slots and free >= needed:
            return victims
        if policy.yields(sequence, candidate):
            assert sequence.table is not None
            victims.append(sequence)
            slots += 1
            free += sequence.table.own_blocks()
            needed -= promised.get(sequence, 0)
    # Into an empty batch whatever was accepted fits.
    return victims if slots and (free >= needed or len(victims) == len(batch.running)) else []
