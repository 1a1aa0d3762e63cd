"""Speculative decoding: drafts are planned beside a row's token, and all are verified in one step.

    plan      row of 1 + k tokens: the last one that is known, and k drafts
    result    the drafts that held, and one token of the model's own: 1 to 1 + k tokens of one step

The worker keeps a draft only if it is the token that it would have sampled: drafts change how many tokens a
step gives and never which. Where drafts come from says `drafters.py`.

A sequence with drafts in flight is not planned ahead, because nobody knows where it goes on. A sequence that
is to get drafts waits until its token in flight is known, and until drafts of others that are in flight are
back: so all drafts go in one step.

What a grammar forces is a draft, too, and one that holds. The worker reports runs of forced tokens:

    result    row samples `"`; forced after it are `, " age " :`
    plan      row of `"` and these as drafts: six tokens of one step, the last one chosen freely

Such drafts cost what the same tokens would cost without them. So they need no speculation, and do not wait
for drafts of others. They are planned behind a token in flight as well, if the run is known by then. A short
run is not worth the step that the sequence then sits out.
"""

from collections.abc import Sequence as Series

from scheduler_svc.core.drafters import Speculation
from scheduler_svc.core.flight import Flight, accepted
from scheduler_svc.core.plan import Gain, StepResult
from scheduler_svc.core.request import Finish
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder

FEWEST_FORCED = 2
"""Forced tokens of a row from which on they are planned as drafts. A sequence with drafts in flight is left
out of the step that is planned meanwhile."""
MOST_FORCED = 32
"""Forced tokens of a row at most."""


class StepDrafts:
    """The drafts of one step, which some of its decodes get."""

    def __init__(
        self, state: SchedulerState, speculation: Speculation | None, decodes: list[Sequence]
    ) -> None:
        """`decodes`: all sequences that decode. `speculation`: None if only forced tokens are drafts."""
        self._state = state
        self._speculation = speculation
        self._longest = 0 if speculation is None else speculation.longest(len(decodes))
        self._in_flight = self._longest > 0 and any(sequence.drafted for sequence in decodes)

    def holds_back(self, sequence: Sequence) -> bool:
        """Whether a sequence must not be planned now: its drafts are in flight, or it is to get some later.

        Two sequences whose drafts are in flight by turns would each have a step to itself.
        """
        if sequence.drafted:
            return True
        if self._speculation is None or not self._longest:
            return False
        later = self._in_flight or sequence.planned >= len(sequence.tokens)
        return later and bool(self._speculation.drafts(sequence, 1))

    def add(self, step: StepBuilder) -> None:
        """Add drafts to the step's decodes that have no token in flight, and those that grammars force.

        No sequence is preempted for drafts, and half of the step's remaining budget is left for prefills.
        """
        limits, pool = self._state.limits, self._state.batch.pool
        spare = self._state.prefill_budget.beside_decodes(step.budget) // 2
        for row, sequence in enumerate(step.sequences):
            table, begin = sequence.table, sequence.planned
            assert table is not None
            tokens = self._drafts(sequence, min(spare, sequence.group.limit - begin - 1))
            if not tokens:
                continue
            missing = limits.blocks_for(begin + len(tokens)) - len(table.blocks)
            if (growth := min(missing, pool.free_blocks - limits.watermark)) > 0:
                step.append_blocks(sequence.slot, table.grow(growth))
            tokens = tokens[: table.room - begin]
            sequence.drafted = len(tokens)
            sequence.planned += len(tokens)
            step.add_drafts(row, tokens)
            spare -= len(tokens)

    def _drafts(self, sequence: Sequence, room: int) -> Series[int]:
        """Up to `room` drafts for after the row that was planned last."""
        if room <= 0 or sequence.group.request.alternatives:
            return ()
        sequence.drafts_forced = False
        if sequence.forced is not None and (forced := _forced_from(sequence, min(room, MOST_FORCED))):
            sequence.drafts_forced = True
            return forced
        if self._speculation is None or sequence.planned != len(sequence.tokens):
            return ()
        count = min(self._longest, room)
        return self._speculation.drafts(sequence, count) if count else ()


def _forced_from(sequence: Sequence, room: int) -> Series[int]:
    """Up to `room` tokens that are forced after the row that was planned last; none if they are too few."""
    assert sequence.forced is not None
    start, run = sequence.forced
    first = sequence.planned - start
    left = run[first : first + room] if first >= 0 else ()
    return left if len(left) >= FEWEST_FORCED else ()


def note_forced(flight: Flight, result: StepResult) -> None:
    """Keep the runs of forced tokens that the rows of a result have reported."""
    for row, forced in result.forced.items():
        if (sequence := flight.sequences[row]).epoch == flight.epochs[row]:
            sequence.forced = forced


def drafts_of_step(state: SchedulerState, decodes: list[Sequence]) -> StepDrafts | None:
    """The drafts of the step that is being planned; None if nothing proposes any."""
    if state.speculation is None and not state.batch.grammars.in_use:
        return None
    return StepDrafts(state, state.speculation, decodes)


def verify(
    state: SchedulerState,
    sequence: Sequence,
    run: Series[int],
    entry: int,
    samples: Series[int],
    gains: list[Gain],
) -> Finish:
    """Take in what a row with drafts sampled, some of it rejected: `run`, which begins at a result's `entry`.

    `samples`: how many tokens each row of the step has sampled. Adds the tokens that the sequence gained, one
    at least, to the gains. Whether the last one ends it.
    """
    group, count = sequence.group, accepted(run)
    finish, place = Finish.NOT_FINISHED, 0
    for place in range(count):
        sequence.tokens.append(run[place])
        finish = sequence.ending()
        gains.append(Gain(group, sequence.index, run[place], finish, entry + place))
        if finish:
            break
    group.drafted_rows += 1
    group.drafts += len(run) - 1
    group.drafts_held += count - 1
    if sequence.drafts_forced:
        group.forced_tokens += count - 1
    elif sequence.draft_state is not None and sequence.draft_state.predicted:
        group.predicted += count - 1
        group.predicted_rejected += len(run) - count
    if sequence.draft_state is not None and state.speculation is not None:
        due = state.speculation.cost.due(samples, len(run) - 1)
        sequence.draft_state.judge(len(run) - 1, count - 1, due, len(sequence.tokens))
    state.batch.roll_back(sequence)
    if behind := count - 1 - place:  # tokens behind the end, which the worker has computed
        sequence.planned += behind
        sequence.computed = min(sequence.planned, len(sequence.tokens))
    return finish
