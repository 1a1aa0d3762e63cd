"""What a sequence loses when it is preempted, in tokens that could be computed while that is made good."""

from scheduler_svc.core.batch import Batch
from scheduler_svc.core.sequence import Sequence


def loss(batch: Batch, victim: Sequence) -> float:
    """Blocks that others share are not lost. Of the rest, all tokens are computed again, but for full blocks
    that host memory takes: those are brought back, and taken there unless it has them already. What takes no
    prefix loses all that it has.
    """
    table, pool, limits = victim.table, batch.pool, batch.limits
    assert table is not None
    if not victim.group.request.takes_prefixes:
        return victim.planned
    held = table.held()
    own = [number for number, block in enumerate(held, table.dropped) if pool.references(block) == 1]
    lost = victim.planned - (len(held) - len(own)) * limits.block_size
    if pool.host is None:
        return lost
    kept = [number for number in own if number < table.named][: limits.host_blocks]
    moves = sum(1 if victim.chain[number] in pool.host else 2 for number in kept)
    return lost - len(kept) * limits.block_size + moves * limits.swap_tokens
