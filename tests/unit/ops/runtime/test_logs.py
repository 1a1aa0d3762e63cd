"""Log lines: one line an entry whatever a client wrote, and no flood of equal ones."""

import io
import json
import logging
from datetime import UTC, datetime

import pytest
from opentelemetry.sdk.trace import TracerProvider

from ops.runtime.logs import MOST, WINDOW, JsonLine, OneLine, Sparing


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def log(clock: Clock, out: io.StringIO) -> logging.Logger:
    """A logger of its own, over a process's handler."""
    logger = logging.Logger("test")
    handler = logging.StreamHandler(out)
    handler.setFormatter(OneLine("%(levelname)s %(message)s"))
    handler.addFilter(Sparing(clock))
    logger.addHandler(handler)
    return logger


def test_a_clients_line_breaks_make_no_line(log: logging.Logger, out: io.StringIO) -> None:
    log.info("no model %s", "x\n2026-11-22 gateway ERROR forged\r\x1b[2Jé\u2028\x85end")
    assert out.getvalue() == (
        "INFO no model x\\n2026-11-22 gateway ERROR forged\\r\\x1b[2Jé\\u2028\\x85end\n"
    )


def test_a_tracebacks_lines_are_indented(log: logging.Logger, out: io.StringIO) -> None:
    try:
        raise ValueError("bad\nERROR forged\x1b")
    except ValueError:
        log.exception("failed")
    first, *rest = out.getvalue().splitlines()
    assert first == "ERROR failed"
    assert rest[0] == "    Traceback (most recent call last):"
    assert rest[-1] == "    ERROR forged\\x1b"
    assert all(line.startswith("    ") for line in rest)


def test_an_entry_as_json(log: logging.Logger, out: io.StringIO) -> None:
    log.handlers[0].setFormatter(JsonLine("gateway"))
    log.warning("request %s: no model %s", "r1", "x\nforged\u2028")
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("answer") as span:
        try:
            raise ValueError("bad\nforged")
        except ValueError:
            log.exception("failed")
    first, second = map(json.loads, out.getvalue().splitlines())
    age = datetime.now(UTC) - datetime.fromisoformat(first.pop("time"))
    assert 0 <= age.total_seconds() < 300
    said = {"service": "gateway", "logger": "test", "level": "WARNING"}
    assert first == {**said, "message": "request r1: no model x\nforged\u2028", "request_id": "r1"}
    context = span.get_span_context()
    assert int(second["trace_id"], 16) == context.trace_id
    assert int(second["span_id"], 16) == context.span_id
    assert second["message"] == "failed"
    assert second["error"].endswith("ValueError: bad\nforged")


def test_a_flood_of_one_warning_is_counted(log: logging.Logger, out: io.StringIO, clock: Clock) -> None:
    for number in range(MOST + 90):
        clock.now = number / 10
        log.warning("entry %d is malformed", number)
    log.warning("another")
    clock.now = WINDOW + 1
    log.warning("entry %d is malformed", 1000)
    log.warning("entry %d is malformed", 1001)
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["WARNING entry 0 is malformed", "WARNING entry 1 is malformed"]
    assert lines[MOST - 1] == "WARNING entry 9 is malformed (more of these in the next 59 s are left out)"
    assert lines[MOST:] == [
        "WARNING another",
        "WARNING entry 1000 is malformed (90 more before this one)",
        "WARNING entry 1001 is malformed",
    ]


def test_what_is_no_warning_is_never_left_out(log: logging.Logger, out: io.StringIO) -> None:
    for _ in range(5 * MOST):
        log.info("ready")
    assert out.getvalue().count("ready") == 5 * MOST


def test_kinds_without_end_are_forgotten(clock: Clock) -> None:
    sparing = Sparing(clock)
    for number in range(5000):
        sparing.filter(logging.LogRecord("test", logging.WARNING, "", 0, f"kind {number}", None, None))
    assert len(sparing._kinds) <= 1024
