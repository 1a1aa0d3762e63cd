"""Forks: samples and beams that begin in the blocks of another sequence, which has computed them."""

from scheduler_svc.core.phases.prefill import add_chunk
from scheduler_svc.core.plan import NewSlot
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


def add_forks(state: SchedulerState, step: StepBuilder) -> None:
    """Do the forks that the last results asked for.

    A sequence for which there is no room now waits instead. It will begin with what is cached then.
    """
    batch, watermark = state.batch, state.limits.watermark
    for child, parent, tokens in state.forks:
        if child.state is not State.FORK:  # it has ended meanwhile
            continue
        room = step.budget and step.may_seat and batch.free_slots and batch.pool.free_blocks > watermark
        if room and state.shares.contended and (first := state.waiting.peek()) is not None:
            room = not state.shares.precedes(first, child)
        if not (room and _can_fork(state, step, parent, tokens)):
            child.move(State.WAITING)
            state.waiting.push(child)
            continue
        sources, targets = batch.fork(child, parent, tokens)
        step.copy_blocks(sources, targets)
        new = NewSlot(
            child.slot,
            child.group.request,
            child.index,
            child.tokens[tokens:],
            targets,
            forked_from=parent.slot,
            forked_tokens=tokens,
            grammar=batch.grammars.number(child.group.request.grammar),
        )
        step.seat(new)
        step.seated |= {child, parent}
        add_chunk(state, step, child)
    state.forks.clear()


def _can_fork(state: SchedulerState, step: StepBuilder, parent: Sequence, tokens: int) -> bool:
    """Whether blocks that the parent holds have all that a row after its first `tokens` positions reads.

    A recurrent layer reads the state after these positions. In a block that they do not fill it is that after
    the last position that was computed. A copy takes it before the rows of this step compute further ones.
    """
    limits = state.limits
    if limits.recurrent and tokens % limits.block_size:
        return parent.table is not None and step.begin_of(parent) == tokens
    # Behind a prompt of one token there is nothing to share.
    return 0 < tokens <= parent.computed and state.batch.can_fork(parent, tokens)
