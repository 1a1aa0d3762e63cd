"""Speculative decoding: drafts are planned beside a row's token, and all are verified in one step.

    plan      row of 1 + k tokens: the last one that is known, and k drafts
    result    the drafts that held, and one token of the model's own: 1 to 1 + k tokens of one step

The worker keeps a draft only if it is the token that it would have sampled: drafts change how many tokens a
step gives and never which. Where drafts come from says `drafters.py`.

A sequence with drafts in flight is not planned ahead, because nobody knows where it goes on. A sequence that
is to get drafts waits until its token in flight is known, and until drafts of others that are in flight are
back: so all drafts go in one step.
"""

from collections.abc import Sequence as Series

from scheduler_svc.core.drafters import Speculation
from scheduler_svc.core.flight import accepted
from scheduler_svc.core.plan import Gain
from scheduler_svc.core.request import Finish
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


class StepDrafts:
    """The drafts of one step, which some of its decodes get."""

    def __init__(self, state: SchedulerState, speculation: Speculation, decodes: list[Sequence]) -> None:
        """`decodes`: all sequences that decode."""
        self._state = state
        self._speculation = speculation
        self._longest = speculation.longest(len(decodes))
        self._in_flight = self._longest > 0 and any(sequence.drafted for sequence in decodes)

    def holds_back(self, sequence: Sequence) -> bool:
        """Whether a sequence must not be planned now: its drafts are in flight, or it is to get some later.

        Two sequences whose drafts are in flight by turns would each have a step to itself.
        """
        if sequence.drafted:
            return True
        if not self._longest:
            return False
        later = self._in_flight or sequence.planned >= len(sequence.tokens)
        return later and bool(self._speculation.drafts(sequence, 1))

    def add(self, step: StepBuilder) -> None:
        """Add drafts to the step's decodes that have no token in flight.

        No sequence is preempted for drafts, and half of the step's remaining budget is left for prefills.
        """
        if not self._longest:
            return
        limits, pool = self._state.limits, self._state.batch.pool
        spare = step.budget // 2
        for row, sequence in enumerate(step.sequences):
            table, begin = sequence.table, sequence.planned
            assert table is not None
            count = min(self._longest, spare, sequence.group.limit - begin - 1)
            if begin != len(sequence.tokens) or count <= 0:
                continue
            tokens = self._speculation.drafts(sequence, count)
            missing = limits.blocks_for(begin + len(tokens)) - len(table.blocks)
            if (growth := min(missing, pool.free_blocks - limits.watermark)) > 0:
                step.append_blocks(sequence.slot, table.grow(growth))
            tokens = tokens[: table.room - begin]
            sequence.drafted = len(tokens)
            sequence.planned += len(tokens)
            step.add_drafts(row, tokens)
            spare -= len(tokens)


def drafts_of_step(state: SchedulerState, decodes: list[Sequence]) -> StepDrafts | None:
    """The drafts of the step that is being planned; None if there is no speculation."""
    return None if state.speculation is None else StepDrafts(state, state.speculation, decodes)


def verify(
    state: SchedulerState, sequence: Sequence, tokens: Series[int], begin: int, end: int, gains: list[Gain]
) -> Finish:
    """Take in what a row with drafts sampled: the tokens `begin` to `end` - 1 of a result, some rejected.

    Adds the tokens that the sequence gained, one at least, to the gains. Whether the last one ends it.
    """
    group, run = sequence.group, tokens[begin:end]
    count = accepted(run)
    finish = Finish.NOT_FINISHED
    for entry in range(begin, begin + count):
        sequence.tokens.append(tokens[entry])
        finish = sequence.ending()
        gains.append(Gain(group, sequence.index, tokens[entry], finish, entry))
        if finish:
            break
    group.gained = True
    group.drafts += len(run) - 1
    group.drafts_held += count - 1
    assert sequence.draft_state is not None
    sequence.draft_state.judge(len(run) - 1, count - 1, len(sequence.tokens))
    state.batch.roll_back(sequence)
    return finish
