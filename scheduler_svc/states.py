"""Every change of a sequence's state becomes a span below its request's span, and a line in the debug log.

    scheduler.generate
    ├─ scheduler.waiting      it has no slot yet, or its worker was lost
    ├─ scheduler.prefill      its tokens are computed, but for those that were cached
    ├─ scheduler.decode       it gets tokens
    ├─ scheduler.preempted    it has lost its slot to others
    └─ scheduler.fork         it waits for blocks of another sequence of the request

A sequence changes its state when it is admitted, preempted or done, and not with each token. Only beams
change it more often, when they fork.
"""

import logging
import time
from collections.abc import Callable

from opentelemetry.trace import Span

from ops.runtime.light_spans import LightSpan
from ops.runtime.trace_sampling import LONGEST_WAIT
from scheduler_svc.core.sequence import Sequence, State

log = logging.getLogger(__name__)

MAX_SPANS = 100
"""Spans of states of one request at most; later changes are only counted."""
MAX_PAUSES = 20
"""Events of pauses of one request at most."""
PAUSE_SECONDS = 0.25
"""A shorter time between two tokens is no pause."""
PAUSE_TIMES = 4.0
"""Times the mean time between tokens that a pause takes."""
_NAMES = {state: f"scheduler.{state.value}" for state in State}


class RequestStates:
    """Records the changes of one request's sequences, see `SequenceGroup.watch`, and when its tokens come."""

    def __init__(self, span: Span, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: in seconds."""
        self.changes = 0
        self.preemptions = 0
        self._span = span
        self._under_way: dict[int, tuple[State, Span | None]] = {}
        """State of each sequence that is not done, and its span."""
        self._clock, self._since = clock, clock()
        """`_since`: when tokens came last, or the beginning."""
        self._longest = 0.0
        self._notable = -1.0
        """Seconds; nothing is noted of a shorter wait."""
        self._tokens = self._pauses = 0
        self._first = 0.0
        """When the first tokens came."""

    def __call__(self, sequence: Sequence) -> None:
        self.changes += 1
        self.preemptions += sequence.state is State.PREEMPTED
        before, span = self._under_way.pop(sequence.index, (None, None))
        if span is not None:
            span.end()
        logged = log.isEnabledFor(logging.DEBUG)
        if sequence.state is State.DONE and not logged:
            return
        facts = _facts(sequence)
        if sequence.state is not State.DONE:
            self._under_way[sequence.index] = sequence.state, self._begin(sequence.state, before, facts)
        if logged:
            text = ", ".join(f"{fact.removeprefix('quire.')} {value}" for fact, value in facts.items())
            log.debug("request %s: %s, %s", sequence.group.request.request_id, sequence.state.name, text)

    def tokens(self) -> None:
        """The request has tokens for its caller. The first ones and those after a pause are events."""
        now = self._clock()
        waited, self._since = now - self._since, now
        self._tokens += 1
        if waited > self._notable:  # each token comes by here
            self._note(waited)

    def close(self) -> None:
        """The request has ended."""
        for _, span in self._under_way.values():
            if span is not None:
                span.end()
        self._under_way.clear()
        totals = {"quire.state_changes": self.changes, "quire.preemptions": self.preemptions}
        self._span.set_attributes(totals)
        self._span.set_attribute(LONGEST_WAIT, round(max(self._longest, self._clock() - self._since), 6))

    def _note(self, waited: float) -> None:
        self._longest = max(self._longest, waited)
        self._notable = min(self._longest, PAUSE_SECONDS)
        if self._tokens == 1:
            self._first = self._since
            self._now().add_event("first token", {"quire.waited_seconds": waited})
        elif waited > PAUSE_SECONDS and self._pauses < MAX_PAUSES:
            gaps, before = self._tokens - 2, self._since - waited - self._first
            if not gaps or waited > PAUSE_TIMES * before / gaps:
                self._pauses += 1
                self._now().add_event("pause", {"quire.waited_seconds": waited})

    def _begin(self, state: State, before: State | None, facts: dict[str, str | int]) -> Span | None:
        if self.changes > MAX_SPANS or not isinstance(self._span, LightSpan):
            return None
        if before is not None:
            facts["quire.after"] = before.value
        return self._span.child(_NAMES[state], attributes=facts)

    def _now(self) -> Span:
        """The span that events belong to: of the one sequence, or of the request if it has several."""
        spans = [span for _, span in self._under_way.values() if span is not None]
        return spans[0] if len(spans) == 1 else self._span


def _facts(sequence: Sequence) -> dict[str, str | int]:
    facts: dict[str, str | int] = {"quire.sequence_index": sequence.index}
    if sequence.state is State.PREFILL:
        facts |= {"quire.tokens": len(sequence.tokens), "quire.cached_tokens": sequence.computed}
    else:
        facts["quire.computed_tokens"] = sequence.computed
    if sequence.state is State.PREEMPTED:
        assert sequence.table is not None
        kept = sequence.table.named_tokens
        facts |= {"quire.kept_tokens": kept, "quire.lost_tokens": sequence.planned - kept}
    return facts


def states_of(span: Span) -> RequestStates | None:
    """A recorder for the span; None if nobody would see what it records, so that it costs nothing."""
    return RequestStates(span) if span.is_recording() or log.isEnabledFor(logging.DEBUG) else None
