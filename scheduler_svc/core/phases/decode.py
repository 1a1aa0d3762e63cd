"""Decodes: each running sequence whose tokens are all known computes the newest, and samples the next."""

from scheduler_svc.core.account import Account
from scheduler_svc.core.capabilities import beams
from scheduler_svc.core.capabilities.drafts import drafts_of_step
from scheduler_svc.core.phases.preempt import grow
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


def add_decodes(state: SchedulerState, step: StepBuilder) -> None:
    """Add the step's first rows, one for each sequence that can go on.

    All decodes of a batch pass through this loop: a capability costs one comparison if it is not used.
    """
    rows, budget = step.sequences, step.budget
    stuck: set[Account] = set()  # an older sequence found no block and none to preempt: nor will one younger
    decode = State.DECODE
    decodes = [sequence for sequence in _first_to_last(state, budget) if sequence.state is decode]
    drafts = drafts_of_step(state, decodes)
    for sequence in decodes:
        position, group, table = sequence.planned, sequence.group, sequence.table
        # A row at p samples the token of p + 1. The last token needs no row of its own.
        if table is None or position + 2 > group.limit:  # without a table it was preempted by an older one
            continue
        beam_round = group.beam_round
        if beam_round is not None and beams.awaits_round(sequence):
            continue
        if len(rows) == budget:
            break
        if drafts is not None and drafts.holds_back(sequence):
            continue
        if position == table.room and (group.account in stuck or not grow(state, step, sequence, 1)):
            stuck.add(group.account)
            continue
        if group.request.alternatives and not step.may_report(group.request.alternatives):
            continue
        sequence.planned = position + 1
        rows.append(sequence)
        if beam_round is not None:
            beams.give_tokens(step, sequence)
    step.set_decodes(state.policy.decodes(rows))
    if drafts is not None:
        drafts.add(step)


def _first_to_last(state: SchedulerState, budget: int) -> list[Sequence]:
    """The running sequences in the order in which they get blocks; in any if all find a block and a row."""
    running = state.batch.running
    return running if min(state.batch.pool.free_blocks, budget) >= len(running) else state.in_order()
