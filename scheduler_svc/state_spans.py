"""Every change of a sequence's state is a span below its request's span, and a line in the debug log.

    scheduler.generate
    ├─ scheduler.waiting      it has no slot yet, or its worker was lost
    ├─ scheduler.prefill      its tokens are computed, but for those that were cached
    ├─ scheduler.decode       it gets tokens
    ├─ scheduler.preempted    it has lost its slot to others
    └─ scheduler.fork         it waits for blocks of another sequence of the request

A sequence changes its state when it is admitted, preempted or done, and not with each token. Only beams
change it more often, when they fork. While it is not known whether a request's trace is sent, its changes are
kept as numbers, and no spans are made of them: most never are sent.
"""

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

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


class _Change(NamedTuple):
    """A sequence has begun, or has changed its state."""

    at: int
    """Nanoseconds."""
    sequence: int
    """Its index."""
    state: State
    before: State | None
    """The state that it had; None if it begins."""
    tokens: int
    computed: int
    planned: int
    kept: int
    """Tokens that a preempted sequence keeps."""


class _Event(NamedTuple):
    """Tokens have come that are worth an event."""

    at: int
    """Nanoseconds."""
    name: str
    waited: float
    """Seconds."""


class RequestStates:
    """Records the changes of one request's sequences, see `SequenceGroup.watch`, and when its tokens come."""

    def __init__(self, span: Span, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: in seconds."""
        self.changes = 0
        self.preemptions = 0
        self._span = span
        self._recorded, self._logged = isinstance(span, LightSpan), log.isEnabledFor(logging.DEBUG)
        self._under_way: dict[int, State] = {}
        """State of each sequence that is not done."""
        self._kept: list[_Change | _Event] = []
        """What has happened, in order, and has not been drawn."""
        self._drawing = _Drawing(span) if isinstance(span, LightSpan) and span.request.sent else None
        self._keep = self._kept.append if self._drawing is None else self._drawing.take
        self._left_out: set[int] = set()
        """Sequences that have changed their state after `MAX_SPANS` changes."""
        self._clock, self._since = clock, clock()
        """`_since`: when tokens came last, or the beginning."""
        self._longest = 0.0
        self._notable = -1.0
        """Seconds; nothing is noted of a shorter wait."""
        self._tokens = self._pauses = 0
        self._first = 0.0
        """When the first tokens came."""

    def __call__(self, sequence: Sequence) -> None:
        state, index, now, kept = sequence.state, sequence.index, time.time_ns(), 0
        self.changes += 1
        self.preemptions += state is State.PREEMPTED
        if not (self._recorded or self._logged):
            return
        before = self._under_way.pop(index, None)
        if state is not State.DONE:
            self._under_way[index] = state
        if state is State.PREEMPTED:
            assert sequence.table is not None
            kept = sequence.table.named_tokens
        tokens, computed, planned = len(sequence.tokens), sequence.computed, sequence.planned
        change = _Change(now, index, state, before, tokens, computed, planned, kept)
        if self.changes <= MAX_SPANS:
            self._keep(change)
        elif index not in self._left_out:
            self._left_out.add(index)
            self._keep(change._replace(state=State.DONE))  # its latest span has an end
        if self._logged:
            facts = _facts(change).items()
            text = ", ".join(f"{fact.removeprefix('quire.')} {value}" for fact, value in facts)
            log.debug("request %s: %s, %s", sequence.group.request.request_id, state.name, text)

    def tokens(self) -> None:
        """The request has tokens for its caller. The first ones and those after a pause are events."""
        now = self._clock()
        waited, self._since = now - self._since, now
        self._tokens += 1
        if waited > self._notable:  # each token comes by here
            self._note(waited)

    def close(self) -> None:
        """The request has ended."""
        if not isinstance(self._span, LightSpan):
            return
        waited = round(max(self._longest, self._clock() - self._since), 6)
        totals = {"quire.state_changes": self.changes, "quire.preemptions": self.preemptions}
        self._span.set_attributes({**totals, LONGEST_WAIT: waited})
        if self._drawing is None:
            self._span.complete = partial(_draw, self._kept, time.time_ns())
        else:
            self._drawing.end(time.time_ns())

    def _note(self, waited: float) -> None:
        self._longest = max(self._longest, waited)
        self._notable = min(self._longest, PAUSE_SECONDS)
        if self._tokens == 1:
            self._first = self._since
            self._keep(_Event(time.time_ns(), "first token", waited))
        elif waited > PAUSE_SECONDS and self._pauses < MAX_PAUSES:
            gaps, before = self._tokens - 2, self._since - waited - self._first
            if not gaps or waited > PAUSE_TIMES * before / gaps:
                self._pauses += 1
                self._keep(_Event(time.time_ns(), "pause", waited))


class _Drawing:
    """Makes spans and events below a request's span of what has happened."""

    def __init__(self, request: LightSpan) -> None:
        self._request = request
        self._under_way: dict[int, LightSpan] = {}
        """By sequence."""

    def take(self, each: _Change | _Event) -> None:
        under_way = self._under_way
        if isinstance(each, _Event):  # of the one sequence, or of the request if it has several
            (span,) = under_way.values() if len(under_way) == 1 else (self._request,)
            span.events = (*span.events, (each.name, {"quire.waited_seconds": each.waited}, each.at))
            return
        if (before := under_way.pop(each.sequence, None)) is not None:
            before.end(each.at)
        if each.state is not State.DONE:
            name, facts = _NAMES[each.state], _facts(each)
            under_way[each.sequence] = self._request.child(name, attributes=facts, start_time=each.at)

    def end(self, at: int) -> None:
        """The request has ended. `at`: nanoseconds."""
        for span in self._under_way.values():
            span.end(at)


def _draw(kept: Iterable[_Change | _Event], end: int, request: LightSpan) -> None:
    """Make the spans and events of what was kept. `end`: of the request, in nanoseconds."""
    drawing = _Drawing(request)
    for each in kept:
        drawing.take(each)
    drawing.end(end)


def _facts(change: _Change) -> dict[str, str | int]:
    facts: dict[str, str | int] = {"quire.sequence_index": change.sequence}
    if change.state is State.PREFILL:
        facts |= {"quire.tokens": change.tokens, "quire.cached_tokens": change.computed}
    else:
        facts["quire.computed_tokens"] = change.computed
    if change.state is State.PREEMPTED:
        facts |= {"quire.kept_tokens": change.kept, "quire.lost_tokens": change.planned - change.kept}
    if change.before is not None and change.state is not State.DONE:
        facts["quire.after"] = change.before.value
    return facts


def states_of(span: Span) -> RequestStates | None:
    """A recorder for the span; None if nobody would see what it records, so that it costs nothing."""
    return RequestStates(span) if span.is_recording() or log.isEnabledFor(logging.DEBUG) else None
