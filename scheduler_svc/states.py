"""What becomes of a request's sequences: for every change of state an event on its span, a line in the log.

A sequence changes its state when it is admitted, preempted, done, and not with each token; beams alone do.
"""

import logging

from opentelemetry.trace import Span

from scheduler_svc.core.sequence import Sequence, State

log = logging.getLogger(__name__)

MAX_EVENTS = 100
"""Of one span: what is preempted over and over, or searches with beams, is counted and no longer told."""


class StateEvents:
    """Is told of the changes; see `SequenceGroup.watch`."""

    def __init__(self, span: Span) -> None:
        self.changes = 0
        self.preemptions = 0
        self._span = span

    def __call__(self, sequence: Sequence) -> None:
        self.changes += 1
        self.preemptions += sequence.state is State.PREEMPTED
        told, logged = self.changes <= MAX_EVENTS, log.isEnabledFor(logging.DEBUG)
        if not (told or logged):
            return
        name, facts = sequence.state.name, _facts(sequence)
        if told:
            self._span.add_event(name, facts)
        if logged:
            text = ", ".join(f"{fact.removeprefix('quire.')} {value}" for fact, value in facts.items())
            log.debug("%s: %s, %s", sequence.group.request.request_id, name, text)

    def totals(self) -> dict[str, int]:
        """For the span's attributes."""
        return {"quire.state_changes": self.changes, "quire.preemptions": self.preemptions}


def _facts(sequence: Sequence) -> dict[str, int]:
    facts = {"quire.sequence_index": sequence.index, "quire.computed_tokens": sequence.computed}
    if sequence.state is State.PREEMPTED:
        assert sequence.table is not None
        kept = sequence.table.named_tokens
        facts |= {"quire.kept_tokens": kept, "quire.lost_tokens": sequence.planned - kept}
    return facts


def events(span: Span) -> StateEvents | None:
    """None if nobody would see them: then they cost nothing."""
    return StateEvents(span) if span.is_recording() or log.isEnabledFor(logging.DEBUG) else None
