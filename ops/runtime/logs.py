"""What a process logs: one line an entry, and not the same line without end.

A client's text may be in a message. Its line breaks and other control characters are written as escapes, so
that it cannot pass for a line of its own or do anything to a terminal. The lines of a traceback are indented.
For programs that read logs an entry is a JSON object instead, with its traceback.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from opentelemetry import trace

MOST = 10
"""Warnings and errors of one kind in `WINDOW` seconds. Further ones are counted."""
WINDOW = 60.0
ABOUT_REQUEST = "request %s: "
"""Begins the messages about one request, whose id comes first."""
KINDS = 1024
"""Kinds whose numbers are remembered."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def start_logs(name: str, level: str, form: str) -> None:
    """Log to stderr from now on, as `name`. `form`: `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    text = OneLine(f"%(asctime)s {name:<9} %(levelname)s %(message)s")
    handler.setFormatter(JsonLine(name) if form == "json" else text)
    handler.addFilter(Sparing())
    logging.basicConfig(level=level, handlers=[handler])


class OneLine(logging.Formatter):
    """Writes control characters as escapes."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        first, *rest = super().format(record).split("\n")  # the message has no line breaks
        return "\n".join([first, *(f"    {escaped(line)}" for line in rest)])


class JsonLine(logging.Formatter):
    """Writes an entry as a JSON object.

    `request_id` is there if the message begins with `ABOUT_REQUEST`, `trace_id` and `span_id`, in hexadecimal
    digits, if it was logged within a span.
    """

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if str(record.msg).startswith(ABOUT_REQUEST) and isinstance(record.args, tuple):
            entry["request_id"] = str(record.args[0])
        if (span := trace.get_current_span().get_span_context()).is_valid:
            entry["trace_id"] = trace.format_trace_id(span.trace_id)
            entry["span_id"] = trace.format_span_id(span.span_id)
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def escaped(text: str) -> str:
    """The text in one line, as a terminal may show it."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@dataclass(slots=True)
class _Kind:
    since: float
    logged: int = 0
    left_out: int = 0


class Sparing(logging.Filter):
    """Lets `MOST` warnings of a kind pass in `WINDOW` seconds: those of one logger with one template.

    The last one that passes says so, and the first one that passes again how many were left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key, now = (record.name, str(record.msg)), self._clock()
        kind = self._kinds.get(key)
        if kind is None or now - kind.since >= WINDOW:
            missed = kind.left_out if kind else 0
            self._kinds.pop(key, None)
            if len(self._kinds) >= KINDS:
                del self._kinds[next(iter(self._kinds))]  # the one whose window is oldest
            kind = self._kinds[key] = _Kind(now)
            if missed:
                _add(record, f"({missed} more before this one)")
        if kind.logged >= MOST:
            kind.left_out += 1
            return False
        kind.logged += 1
        if kind.logged == MOST:
            _add(record, f"(more of these in the next {WINDOW - (now - kind.since):.0f} s are left out)")
        return True


def _add(record: logging.LogRecord, note: str) -> None:
    record.msg = f"{record.msg} {note}"
