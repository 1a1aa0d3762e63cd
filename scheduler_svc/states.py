"""What becomes of a request's sequences: for every change of state an event on its span, a line in the log.

Nothing here happens for a token; a sequence changes its state when it is admitted, preempted, done.
"""

import logging

from opentelemetry.trace import Span

from scheduler_svc.core.sequence import Sequence, State

log = logging.getLogger(__name__)

MAX_EVENTS = 100
"""Of one span: what is preempted over and over is counted, and no longer told."""


class StateEvents:
    """Is told of the changes; see `SequenceGroup.watch`."""

    def __init__(self, span: Span) -> None:
        self.changes = 0
        self.preemptions = 0
        self._span = span

    def __call__(self, sequence: Sequence) -> None:
        state, facts = sequence.state, {"quire.sequence_index": sequence.index}
        facts["quire.computed_tokens"] = sequence.computed
        if state is State.PREEMPTED:
            self.preemptions += 1
            assert sequence.table is not None
            facts["quire.kept_tokens"] = sequence.table.named_tokens
            facts["quire.lost_tokens"] = sequence.planned - sequence.table.named_tokens
        self.changes += 1
        if self.changes <= MAX_EVENTS:
            self._span.add_event(state.name, facts)
        if log.isEnabledFor(logging.DEBUG):
            told = ", ".join(f"{name.removeprefix('quire.')} {value}" for name, value in facts.items())
            log.debug("%s: %s, %s", sequence.group.request.request_id, state.name, told)

    def totals(self) -> dict[str, int]:
        """For the span's attributes."""
        return {"quire.state_changes": self.changes, "quire.preemptions": self.preemptions}


def events(span: Span) -> StateEvents | None:
    """None if nobody would see them: then they cost nothing."""
    return StateEvents(span) if span.is_recording() or log.isEnabledFor(logging.DEBUG) else None
