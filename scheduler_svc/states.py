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

from opentelemetry import trace
from opentelemetry.trace import Span, Tracer

from ops.runtime.telemetry import Waits
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


class RequestStates:
    """Records the changes of one request's sequences, see `SequenceGroup.watch`, and when its tokens come."""

    def __init__(self, span: Span, tracer: Tracer) -> None:
        self.changes = 0
        self.preemptions = 0
        self._span, self._tracer = span, tracer
        self._recording = span.is_recording()
        self._under_way: dict[int, tuple[State, Span | None]] = {}
        """State of each sequence that is not done, and its span."""
        self._waits = Waits()
        self._tokens = self._pauses = 0
        self._first = 0.0
        """When the first tokens came."""

    def __call__(self, sequence: Sequence) -> None:
        self.changes += 1
        self.preemptions += sequence.state is State.PREEMPTED
        logged = log.isEnabledFor(logging.DEBUG)
        if not (self._recording or logged):
            return
        before, span = self._under_way.pop(sequence.index, (None, None))
        if span is not None:
            span.end()
        facts = _facts(sequence)
        if sequence.state is not State.DONE:
            shown = self._recording and self.changes <= MAX_SPANS
            begun = self._begin(sequence.state, before, facts) if shown else None
            self._under_way[sequence.index] = sequence.state, begun
        if logged:
            text = ", ".join(f"{fact.removeprefix('quire.')} {value}" for fact, value in facts.items())
            log.debug("request %s: %s, %s", sequence.group.request.request_id, sequence.state.name, text)

    def tokens(self) -> None:
        """The request has tokens for its caller. The first ones and those after a pause are events."""
        waited = self._waits.came()
        self._tokens += 1
        if self._tokens == 1:
            self._first = self._waits.since
            self._now().add_event("first token", {"quire.waited_seconds": waited})
        elif waited > PAUSE_SECONDS and self._pauses < MAX_PAUSES:
            gaps, before = self._tokens - 2, self._waits.since - waited - self._first
            if not gaps or waited > PAUSE_TIMES * before / gaps:
                self._pauses += 1
                self._now().add_event("pause", {"quire.waited_seconds": waited})

    def close(self) -> None:
        """The request has ended."""
        for _, span in self._under_way.values():
            if span is not None:
                span.end()
        self._under_way.clear()
        totals = {"quire.state_changes": self.changes, "quire.preemptions": self.preemptions}
        self._span.set_attributes(totals)
        self._waits.note(self._span)

    def _begin(self, state: State, before: State | None, facts: dict[str, int]) -> Span:
        after = {"quire.after": before.value} if before is not None else {}
        context = trace.set_span_in_context(self._span)
        return self._tracer.start_span(f"scheduler.{state.value}", context, attributes={**facts, **after})

    def _now(self) -> Span:
        """The span that events belong to: of the one sequence, or of the request if it has several."""
        spans = [span for _, span in self._under_way.values() if span is not None]
        return spans[0] if len(spans) == 1 else self._span


def _facts(sequence: Sequence) -> dict[str, int]:
    facts = {"quire.sequence_index": sequence.index}
    if sequence.state is State.PREFILL:
        facts |= {"quire.tokens": len(sequence.tokens), "quire.cached_tokens": sequence.computed}
    else:
        facts["quire.computed_tokens"] = sequence.computed
    if sequence.state is State.PREEMPTED:
        assert sequence.table is not None
        kept = sequence.table.named_tokens
        facts |= {"quire.kept_tokens": kept, "quire.lost_tokens": sequence.planned - kept}
    return facts


def states_of(span: Span, tracer: Tracer) -> RequestStates | None:
    """A recorder for the span; None if nobody would see what it records, so that it costs nothing."""
    return RequestStates(span, tracer) if span.is_recording() or log.isEnabledFor(logging.DEBUG) else None
