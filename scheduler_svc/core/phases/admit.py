"""Admissions: a sequence that waits gets a slot, begins with cached blocks, and computes a first chunk."""

from scheduler_svc.core.blocks import ON_HOST
from scheduler_svc.core.capabilities import embeddings, partial_blocks, samples
from scheduler_svc.core.phases.prefill import add_chunk
from scheduler_svc.core.plan import NewSlot
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder

LOOKED_UP = 4
"""Names of blocks that are looked up in the time in which one is made, about."""


def admit(state: SchedulerState, step: StepBuilder, older_than: tuple[float, ...] | None = None) -> None:
    """Admit sequences in the queue's order while there is room.

    `older_than`: only those of a lower urgency (`SchedulerState.urgency`) than this, if given.

    A sequence whose prefix another one computes now is passed over; see `unfinished.py`.
    """
    batch, limits, waiting = state.batch, state.limits, state.waiting
    while step.budget and batch.free_slots and step.may_seat and step.may_name:
        candidate = waiting.peek()
        if candidate is None or (older_than is not None and state.shares.urgency(candidate) > older_than):
            return
        free = batch.pool.free_blocks
        if state.refused is not None and state.refused[0] is candidate and free <= state.refused[1]:
            return  # it finds no more than before another prefill
        if limits.bidirectional and not embeddings.fits(step, limits, candidate):  # no text is cut
            return
        before = len(candidate.chain)
        hits, most, named = _cached_prefix(state, candidate)
        step.new_names += len(candidate.chain) - before
        if state.unfinished.defer(candidate, len(hits), most):
            waiting.pop()
            step.new_names += 1 + named // LOOKED_UP
            continue
        seen = hits[limits.outside_window(len(hits) * limits.block_size) :]
        needed = limits.blocks_at_once(len(candidate.tokens)) - len(seen) + batch.pool.idle_among(seen)
        spare = free - batch.reserved() - needed
        if spare < 0:
            state.short_of_blocks, state.refused = True, (candidate, free)
            return
        parts = partial_blocks.possible(limits, candidate, len(hits)) if limits.recurrent else ()
        if parts and partial_blocks.defer(state, candidate, parts):
            waiting.pop()
            step.new_names += 1 + named // LOOKED_UP
            continue
        # A partial block takes one more of the free ones until it has been copied.
        partial = next((each for each in parts if batch.pool.knows(each.name)), None) if spare else None
        sequence = waiting.pop()
        blocks, sources, targets = batch.admit(sequence, hits, partial)
        step.copy_blocks(sources, targets)
        if limits.recurrent:
            partial_blocks.note_messages(state, sequence)
        if on_host := seen.count(ON_HOST):  # bringing them back takes a share of the step
            step.budget = max(1, step.budget - int(on_host * limits.swap_tokens))
        if sequence.group.request.images and samples.needs_images(sequence):
            batch.sights.take(sequence)
        state.unfinished.begin(sequence, len(hits), named)
        _note_first(sequence)
        new = NewSlot(
            sequence.slot,
            sequence.group.request,
            sequence.index,
            sequence.tokens[:],
            blocks,
            dropped_tokens=sequence.dropped_tokens,
            grammar=batch.grammars.number(sequence.group.request.grammar),
            sight=sequence.sight,
        )
        step.seat(new)
        step.seated.add(sequence)
        add_chunk(state, step, sequence)
        if sequence.planned + 1 == len(sequence.tokens) and not sequence.sight:  # it may wait for its grammar
            state.shares.has_begun(sequence)


def _cached_prefix(state: SchedulerState, sequence: Sequence) -> tuple[list[int], int, int]:
    """Cached blocks that the sequence can begin with, see `BlockPool.match`; how many at most, of the blocks
    that are named; and how many are named for others.

    Something must be left to compute: the block of its last token is not among them.
    """
    hits: list[int] = []
    match = state.batch.pool.match
    while True:
        named = state.name_ahead(sequence, len(hits))
        most = min(named, sequence.group.most_cached // state.limits.block_size)
        more = match(sequence.chain[len(hits) : most])
        hits += more
        if not more or len(hits) < named:
            return hits, most, named


def _note_first(sequence: Sequence) -> None:
    """If the sequence is the first of its group to be admitted, note what was cached."""
    group = sequence.group
    if group.cached_tokens is None:
        group.cached_tokens = min(sequence.computed, len(group.request.prompt))
