"""Which traces are sent: a part of all, those of chosen tenants, and of the rest what failed or was slow.

The gateway decides for a trace that begins there. Every other process follows its caller, whose decision is
in the `traceparent`. Of a trace that is not chosen each process still records its own spans. It sends them if
one of them failed, or if somebody waited too long for a token. No process asks another for that, because who
waits for a process waits at least as long: what is slow in one is sent by all from the gateway to that one.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Status, StatusCode
from opentelemetry.util.types import Attributes, AttributeValue

TENANT = "quire.tenant"
"""Attribute of a request's span: whose API key it came with."""
LONGEST_WAIT = "quire.longest_wait_seconds"
"""Attribute of a span: the longest time that passed without a token, the time to the first one included."""
MAX_HELD = 300
"""Spans that a process holds of one request while it is not known whether they are sent. As many more that
failed, and the one above all others, find room beyond that."""


@dataclass(frozen=True)
class Sampling:
    """Which traces are sent."""

    rate: float = 1.0
    """Part of the traces that begin in this process, 0 to 1."""
    tenants: frozenset[str] = frozenset()
    """Whose requests are all traced."""
    slow_seconds: float = 0.0
    """Of other requests, those that waited this long for a token are sent, and those that failed; 0: none."""

    def chooses(self, trace_id: int, attributes: Attributes) -> bool:
        """Whether a trace that begins in this process is sent. `attributes`: of its first span."""
        # The last 64 bits are random, as every process of a trace and every collector takes them to be.
        return trace_id % 2**64 < round(self.rate * 2**64) or (attributes or {}).get(TENANT) in self.tenants


class Ended(Protocol):
    """A span that has ended."""

    status: Status | None
    attributes: dict[str, AttributeValue]

    @property
    def parent(self) -> object:
        """The span above it in this process; a `str` if there is none."""

    @property
    def nanoseconds(self) -> int:
        """From its begin to its end."""


Span = TypeVar("Span", bound=Ended)


class Request(Generic[Span]):
    """What this process records of one request."""

    __slots__ = (
        *("_ended", "_failed", "_lock", "_longest", "_send", "_slow_seconds", "_under_way"),
        *("chosen", "scope", "sent", "trace_id"),
    )

    def __init__(
        self,
        trace_id: str,
        scope: InstrumentationScope,
        send: Callable[[Span], None],
        chosen: bool,
        slow_seconds: float,
    ) -> None:
        """`trace_id`: 32 hexadecimal digits. `scope`: who makes its spans. `chosen`: its trace is sent in any
        case."""
        self.trace_id, self.scope = trace_id, scope
        self.chosen = self.sent = chosen
        """`sent`: as far as is known."""
        self._send, self._slow_seconds = send, slow_seconds
        self._lock = threading.Lock()  # a worker begins spans in one thread and ends them in another
        self._under_way = 0
        self._ended: list[Span] = []
        self._failed = False
        self._longest: float | None = None
        """Seconds that somebody waited for a token; None if there are none in what is recorded."""

    @property
    def held(self) -> int:
        """Number of spans that have ended, of which it is not known whether they are sent."""
        return len(self._ended)

    def begin(self) -> None:
        """A span has begun."""
        if not self.sent:
            with self._lock:
                self._under_way += 1

    def end(self, span: Span) -> None:
        """A span has ended. With the last one it is known whether all are sent.

        What comes later is sent if they were; otherwise it is on its own.
        """
        if self.sent:
            self._send(span)
            return
        with self._lock:
            failed = span.status is not None and span.status.status_code is StatusCode.ERROR
            self._failed |= failed
            wait = span.attributes.get(LONGEST_WAIT)
            if isinstance(wait, float) and (self._longest is None or wait > self._longest):
                self._longest = wait
            if len(self._ended) < MAX_HELD * (1 + failed) or isinstance(span.parent, str):
                self._ended.append(span)
            self._under_way -= 1
            if self._under_way:
                return
            ended, worth_it = self._ended, self._is_worth_it(span)
            self._ended, self._failed, self._longest = [], False, None
            self.sent = worth_it
        if worth_it:
            for each in ended:
                self._send(each)

    def _is_worth_it(self, last: Span) -> bool:
        """`last`: the span that ended last. What has no tokens was waited for as long as it took."""
        waited = last.nanoseconds / 1e9 if self._longest is None else self._longest
        return self._failed or waited >= self._slow_seconds
