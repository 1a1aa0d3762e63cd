"""Sequences that go on past their context: when it is full they begin again with what `rolling.py` keeps."""

from scheduler_svc.core.rolling import dropped, kept
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.state import SchedulerState


def roll(sequence: Sequence) -> None:
    """Let a sequence forget what a text of its length forgets. It must hold no blocks."""
    count = dropped(sequence.dropped_tokens + len(sequence.tokens), sequence.group.limit)
    if count > sequence.dropped_tokens:
        sequence.tokens = kept(sequence.tokens, count - sequence.dropped_tokens)
        sequence.dropped_tokens = count
        sequence.chain = []
        sequence.reached = 0
        sequence.draft_state = sequence.forced = None


def roll_if_full(state: SchedulerState, sequence: Sequence) -> None:
    """If the sequence has filled its context, queue it to begin again with what it keeps."""
    if len(sequence.tokens) >= sequence.group.limit:
        state.batch.leave(sequence, State.PREEMPTED)
        roll(sequence)
        state.waiting.push(sequence)
