"""Admissions: a sequence that waits gets a slot, begins with cached blocks, and computes a first chunk."""

from scheduler_svc.core.blocks import ON_HOST
from scheduler_svc.core.phases.prefill import add_chunk
from scheduler_svc.core.plan import NewSlot
from scheduler_svc.core.prefix import extend_chain, root
from scheduler_svc.core.sequence import Age, Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


def admit(state: SchedulerState, step: StepBuilder, older_than: Age | None = None) -> None:
    """Admit sequences in the queue's order while there is room; only those that are `older_than`, if given.

    A sequence whose prefix another one computes now is passed over; see `unfinished.py`.
    """
    batch, limits, waiting = state.batch, state.limits, state.waiting
    while step.budget and batch.free_slots:
        candidate = waiting.peek()
        if candidate is None or (older_than is not None and candidate.age > older_than):
            return
        hits, most = _cached_prefix(state, candidate)
        if candidate.group.request.takes_prefixes and state.unfinished.defer(candidate, len(hits), most):
            waiting.pop()
            continue
        seen = hits[limits.outside_window(len(hits) * limits.block_size) :]
        needed = limits.blocks_at_once(len(candidate.tokens)) - len(seen) + batch.pool.idle_among(seen)
        if needed + batch.reserved() > batch.pool.free_blocks:
            return
        sequence = waiting.pop()
        blocks = batch.admit(sequence, hits)
        if on_host := seen.count(ON_HOST):  # bringing them back takes a share of the step
            step.budget = max(1, step.budget - int(on_host * limits.swap_tokens))
        state.unfinished.begin(sequence, len(hits), most)
        _note_first(state, sequence)
        new = NewSlot(
            sequence.slot,
            sequence.group.request,
            sequence.index,
            sequence.tokens[:],
            blocks,
            dropped_tokens=sequence.dropped_tokens,
        )
        step.new_slots.append(new)
        add_chunk(state, step, sequence)


def _cached_prefix(state: SchedulerState, sequence: Sequence) -> tuple[list[int], int]:
    """Cached blocks that the sequence can begin with, see `BlockPool.match`, and how many at most.

    Something must be left to compute: the block of its last token is not among them.
    """
    block_size, request = state.limits.block_size, sequence.group.request
    count = (len(sequence.tokens) - 1) // block_size
    extend_chain(sequence.chain, root(request.salt), sequence.tokens, count, block_size)
    names = sequence.chain[:count] if request.takes_prefixes else []
    return state.batch.pool.match(names), count


def _note_first(state: SchedulerState, sequence: Sequence) -> None:
    """If the sequence is the first of its group to be admitted, note what was cached, and tell the policy."""
    group = sequence.group
    if group.cached_tokens is None:
        group.cached_tokens = min(sequence.computed, len(group.request.prompt))
        state.policy.began(group)
