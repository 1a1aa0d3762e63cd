"""Prefills: the known tokens of a sequence are computed in chunks, as large as budget and blocks allow."""

from collections.abc import Iterable

from scheduler_svc.core.capabilities import beams, embeddings
from scheduler_svc.core.phases.preempt import grow
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


def prefills(state: SchedulerState) -> Iterable[Sequence]:
    """The running prefills, the most urgent first, in the order that the policy wants."""
    running = [sequence for sequence in state.batch.running if sequence.state is State.PREFILL]
    running.sort(key=state.unfinished.urgency)
    return state.policy.prefills(running)


def add_chunk(state: SchedulerState, step: StepBuilder, sequence: Sequence) -> None:
    """Add a row with the next chunk of a prefill, if there is room for one.

    With its last chunk the sequence begins to decode, and samples its next token.
    """
    if not step.budget or sequence.state is not State.PREFILL:  # it may have been preempted meanwhile
        return
    group, start = sequence.group, sequence.planned
    count = _room(state, step, sequence, start, min(len(sequence.tokens) - start, step.budget))
    if not count:
        return
    sequence.planned = start + count
    samples = sequence.planned == len(sequence.tokens)
    if samples:
        sequence.move(State.DECODE)
        if group.request.pooling:
            embeddings.complete_with_next_row(step)
            samples = False
    if group.beam_round is not None:
        beams.give_tokens(step, sequence)
    step.add_chunk(sequence, start, count, samples)


def _room(state: SchedulerState, step: StepBuilder, sequence: Sequence, start: int, count: int) -> int:
    """How many of `count` positions from `start` on have blocks, once the table has grown for them."""
    table, limits = sequence.table, state.limits
    assert table is not None
    missing = limits.blocks_for(start + count) - len(table.blocks)
    if missing <= 0:
        return count
    # Only a sequence that could not go on at all takes blocks from another, and not if blocks of its own
    # will soon be outside its window.
    may_preempt = start == table.room and not (limits.window and sequence.computed < start)
    grow(state, step, sequence, missing, may_preempt)
    return min(count, table.room - start)
