"""Every change of a sequence's state becomes an event on its request's span and a line in the debug log.

A sequence changes its state when it is admitted, preempted or done, and not with each token. Only beams
change it more often, when they fork.
"""

import logging

from opentelemetry.trace import Span

from scheduler_svc.core.sequence import Sequence, State

log = logging.getLogger(__name__)

MAX_EVENTS = 100
"""Events of one span at most; later changes are only counted."""


class StateEvents:
    """Records the changes of one request's sequences; see `SequenceGroup.watch`."""

    def __init__(self, span: Span) -> None:
        self.changes = 0
        self.preemptions = 0
        self._span = span

    def __call__(self, sequence: Sequence) -> None:
        self.changes += 1
        self.preemptions += sequence.state is State.PREEMPTED
        recorded, logged = self.changes <= MAX_EVENTS, log.isEnabledFor(logging.DEBUG)
        if not (recorded or logged):
            return
        name, facts = sequence.state.name, _facts(sequence)
        if recorded:
            self._span.add_event(name, facts)
        if logged:
            text = ", ".join(f"{fact.removeprefix('quire.')} {value}" for fact, value in facts.items())
            log.debug("request %s: %s, %s", sequence.group.request.request_id, name, text)

    def totals(self) -> dict[str, int]:
        """Attributes of the span."""
        return {"quire.state_changes": self.changes, "quire.preemptions": self.preemptions}


def _facts(sequence: Sequence) -> dict[str, int]:
    facts = {"quire.sequence_index": sequence.index, "quire.computed_tokens": sequence.computed}
    if sequence.state is State.PREEMPTED:
        assert sequence.table is not None
        kept = sequence.table.named_tokens
        facts |= {"quire.kept_tokens": kept, "quire.lost_tokens": sequence.planned - kept}
    return facts


def events(span: Span) -> StateEvents | None:
    """A recorder for the span; None if nobody would see the events, so that they cost nothing."""
    return StateEvents(span) if span.is_recording() or log.isEnabledFor(logging.DEBUG) else None
