"""What a result means: tokens are confirmed, full blocks named, and sequences that are done end.

A row counts only if its sequence has kept its slot since it was planned; see `Sequence.epoch`.
"""

from collections.abc import Iterable

from scheduler_svc.core.capabilities import (
    beams,
    drafts,
    embeddings,
    partial_blocks,
    prompt_scores,
    samples,
)
from scheduler_svc.core.capabilities.roll import roll_if_full
from scheduler_svc.core.errors import RequestRefused, RowFailed
from scheduler_svc.core.flight import Flight
from scheduler_svc.core.plan import Gain, Outcome, StepResult
from scheduler_svc.core.request import Finish
from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.core.state import SchedulerState


def settle(state: SchedulerState, flight: Flight, result: StepResult) -> Outcome:
    """Take in the result of a plan, which `Flight.check` has found in order."""
    plan, outcome = flight.plan, Outcome()
    if result.errors:
        _end_failed(state, flight, result, outcome)
    state.batch.pool.release(plan.copies.sources)
    partial_blocks.settle_messages(state, flight, result)
    state.prefill_budget.learn(plan.rows.counts, plan.rows.samples, result.duration_us)
    if state.speculation is not None:
        state.speculation.cost.learn(plan.rows.counts, plan.rows.samples, result.duration_us)
    if plan.prompt_rows.rows:
        prompt_scores.deliver(flight, result, outcome)
    if result.forced:
        drafts.note_forced(flight, result)
    rounds_over = _settle_rows(state, flight, result, outcome.gains)
    if flight.embedded:
        embeddings.deliver(state, flight, result, outcome)
    for group in rounds_over:
        beams.finish_round(state, group, outcome)
    return outcome


def _end_failed(state: SchedulerState, flight: Flight, result: StepResult, outcome: Outcome) -> None:
    """End the groups of which a row failed."""
    for row, message in result.errors.items():
        sequence = flight.sequences[row]
        if sequence.epoch == flight.epochs[row]:
            refused = row in result.at_limits
            error = RequestRefused("grammar", message) if refused else RowFailed(message)
            outcome.failed.append((sequence.group, error))
            state.cancel(sequence.group)
        else:
            partial_blocks.settle_answer(state, sequence, failed=True)


def _settle_rows(
    state: SchedulerState, flight: Flight, result: StepResult, gains: list[Gain]
) -> Iterable[SequenceGroup]:
    """Take in every row. The groups all of whose beams have reported now.

    All rows of all requests pass through this loop: a capability costs one comparison if it is not used.
    """
    limits, tokens, end = state.limits, result.tokens, 0
    block_size, window, goes_on = limits.block_size, limits.window, Finish.NOT_FINISHED
    rounds_over: dict[SequenceGroup, None] = {}
    counts, samples_of = flight.plan.rows.counts, flight.plan.rows.samples
    for sequence, epoch, count, sampled in zip(
        flight.sequences, flight.epochs, counts, samples_of, strict=True
    ):
        end += sampled
        if sequence.epoch != epoch:
            if limits.recurrent:
                partial_blocks.settle_answer(state, sequence)
            continue
        group, finish = sequence.group, goes_on
        if sampled > 1:
            run, first = tokens[end - sampled : end], end - sampled
            finish = drafts.verify(state, sequence, run, first, samples_of, gains)
        else:
            sequence.computed += count
            if group.beam_round is not None:
                if sampled and beams.report(sequence, result.candidates.get(end - 1, ())):
                    rounds_over[group] = None
            elif sampled:
                token = tokens[end - 1]
                sequence.tokens.append(token)
                finish = sequence.ending()
                gains.append(Gain(group, sequence.index, token, finish, end - 1))
        table = sequence.table
        assert table is not None
        if sequence.computed // block_size > table.named:
            state.name_blocks(sequence)
        if window:
            table.drop(limits.outside_window(sequence.computed))
        if group.held:
            samples.fork_held(state, sequence)
        if finish:
            if limits.recurrent and finish is Finish.STOP:
                partial_blocks.keep_answer(state, sequence)
            state.end(sequence)
        elif group.request.rolling:
            roll_if_full(state, sequence)
    return rounds_over
