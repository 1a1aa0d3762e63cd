"""Forks: samples and beams that begin in the blocks of another sequence, which has computed them."""

from scheduler_svc.core.phases.prefill import add_chunk
from scheduler_svc.core.plan import NewSlot
from scheduler_svc.core.sequence import State
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
        room = step.budget and batch.free_slots and batch.pool.free_blocks > watermark
        if room and state.shares.contended and (first := state.waiting.peek()) is not None:
            room = not state.shares.precedes(first, child)
        if not (room and parent.computed >= tokens and batch.can_fork(parent, tokens)):
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
        step.new_slots.append(new)
        step.seated |= {child, parent}
        add_chunk(state, step, child)
    state.forks.clear()
