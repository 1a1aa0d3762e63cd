"""Which rows run in the next step: the order of the phases.

    preempt     running sequences that yield to one that waits: to that of another tenant or user whose share
                is due to it (`shares.py`), or to one of the same user if the policy wants it
    decode      one token for each sequence that decodes
    prefill     chunks of prompts, oldest first; a waiting sequence that is older is admitted before
    fork        samples and beams that begin in the blocks of another sequence
    admit       sequences that wait, while there is room

Decodes come first, so that answers go on steadily; beside them prompts may have a smaller budget
(`prefill_budget.py`). In every phase the older come before the younger. The policy says who is older. Of
several tenants or users each has its own order, and these are merged (`Shares.order`).

When blocks run out, a sequence may preempt a later one that has no row in this step yet: of the user who has
most slots, the one that loses least (`phases/preempt.py`). Progress follows. The first of all can take the
blocks of all others, and is preempted only after a turn. It stands still in a step only if others run
instead, or are about to end. A row in flight is lost only to an earlier sequence that runs in its place, or
after a turn that has gained more than that. So within as many steps as there are sequences one of them gains
for good, and every sequence is bounded in length.
"""

from scheduler_svc.core.capabilities import whole_images
from scheduler_svc.core.phases.admit import admit
from scheduler_svc.core.phases.decode import add_decodes
from scheduler_svc.core.phases.fork import add_forks
from scheduler_svc.core.phases.preempt import make_room, preempt_least_needed, yield_evenly
from scheduler_svc.core.phases.prefill import add_chunk, prefills
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


def plan_step(state: SchedulerState, number: int, at_rest: bool) -> StepBuilder:
    """Plan step `number`: slots and blocks are given out, and `planned` of each row's sequence grows.

    `at_rest`: no plan is in flight.
    """
    step = _plan(state, number)
    if at_rest and step.empty and state.shares.contended and (held := state.awaiting_worker()):
        # The worker has no step to do: another tenant or user need not wait for what it compiles or sees.
        for sequence in held:
            sequence.turn_end = number
        step = _plan_again(state, step)
        if step.empty and yield_evenly(state):
            step = _plan_again(state, step)
    while at_rest and step.empty and state.batch.running and not state.awaiting_worker():
        # All running sequences are beams that hold the memory that other beams of their groups need.
        preempt_least_needed(state)
        step = _plan_again(state, step)
    return step


def _plan_again(state: SchedulerState, empty: StepBuilder) -> StepBuilder:
    """The plan of a step whose plan was empty. The slots that one has freed are told with this one."""
    state.batch.freed_slots.extend(empty.freed_slots)
    return _plan(state, empty.step)


def _plan(state: SchedulerState, number: int) -> StepBuilder:
    step = StepBuilder(number, state.limits.max_step_tokens)
    state.shares.begin_step(number)
    state.short_of_blocks, state.refused = False, None
    make_room(state)
    running = prefills(state)
    room = whole_images.room_beside_decodes(state, running) if state.limits.whole_images else 0
    step.budget -= room
    add_decodes(state, step)
    step.budget += room
    if step.sequences:
        step.budget = state.prefill_budget.beside_decodes(step.budget)
    for sequence in running:
        admit(state, step, older_than=state.urgency(sequence))
        if sequence not in step.seated:  # it was preempted for one before it, and has come back
            add_chunk(state, step, sequence)
    add_forks(state, step)
    admit(state, step)
    _add_changes(state, step)
    return step


def _add_changes(state: SchedulerState, step: StepBuilder) -> None:
    """Add what has changed in slots, tables and host memory since the last plan."""
    batch = state.batch
    # A plan frees slots before it fills them: those that were freed may have been given out again above.
    step.freed_slots.extend(batch.freed_slots)
    batch.freed_slots.clear()
    if step.empty:  # then no block was given out
        return
    step.dropped_grammars, step.new_grammars = batch.grammars.take_changes()
    if batch.pool.host is not None:
        step.swap(batch.pool.host.take_swaps())
    for sequence, length in batch.cut_tables.items():
        step.cut_table(sequence.slot, length)
    batch.cut_tables.clear()
