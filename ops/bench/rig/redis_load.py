"""One process of the benchmark of one Redis: writes entries to an inbox, or reads them, at little cost.

    python -m ops.bench.rig.redis_load send|receive INBOX BYTES

The URL of Redis, which may hold a password, is in the environment. It prints "ready", takes one line with the
seconds to warm up and to measure from its standard input, and prints how many entries and how many replies
with entries there were in the time that counts.

It does what a process of a deployment does, in few instructions: a sender writes one entry and waits until
Redis has it; a receiver waits for entries with a blocking XREAD, and trims what it has read.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import hiredis

ADDRESS = "REDIS_LOAD_ADDRESS"
"""Environment variable: the URL of Redis."""
FIELD = b"e"
READ_COUNT = 64
TRIM_SECONDS = 1.0
BLOCK_MS = 200

Counts = tuple[int, int]
"""Entries, and replies with entries."""


def packed(*command: str | int | bytes) -> bytes:
    """A command as it is sent."""
    found: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return found


class Line:
    """A blocking connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(unquote(parts.path))
        else:
            self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379))
        self._reader = hiredis.Reader()
        if parts.password:
            self.ask(packed("AUTH", parts.username or "default", parts.password))

    def ask(self, command: bytes) -> Any:
        """Send a packed command and wait for its reply. Raises `hiredis.ReplyError`."""
        self._socket.sendall(command)
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(2**20))
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply


def send(line: Line, inbox: str, size: int) -> Callable[[], Counts]:
    """Write an entry each time."""
    add = packed("XADD", inbox, "NOMKSTREAM", "*", FIELD, bytes(size))

    def once() -> Counts:
        line.ask(add)
        return 1, 1

    return once


def receive(line: Line, inbox: str, size: int) -> Callable[[], Counts]:
    """Read what there is each time, and trim now and then."""
    line.ask(packed("XADD", inbox, "*", FIELD, b""))
    after, trimmed = b"0-0", time.monotonic()

    def once() -> Counts:
        nonlocal after, trimmed
        options = ("COUNT", READ_COUNT, "BLOCK", BLOCK_MS, "STREAMS", inbox, after)
        reply = line.ask(packed("XREAD", *options))
        if reply:
            after = reply[0][1][-1][0]
        if time.monotonic() - trimmed > TRIM_SECONDS:
            trimmed = time.monotonic()
            line.ask(packed("XTRIM", inbox, "MINID", after))
        return (len(reply[0][1]), 1) if reply else (0, 0)

    return once


def run(once: Callable[[], Counts], seconds: float) -> Counts:
    """Go on for this time."""
    entries = replies = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        more, reply = once()
        entries += more
        replies += reply
    return entries, replies


if __name__ == "__main__":
    role, inbox, size = sys.argv[1:]
    once = {"send": send, "receive": receive}[role](Line(os.environ[ADDRESS]), inbox, int(size))
    print("ready", flush=True)
    warm_up, seconds = map(float, sys.stdin.readline().split())
    run(once, warm_up)
    print(*run(once, seconds), flush=True)
