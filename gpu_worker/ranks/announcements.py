"""What other ranks tell rank 0: the grammars that they have compiled, and errors in a step.

A row may sample with a grammar that every rank has compiled, and no rank waits.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Lock
from typing import IO

Announce = Callable[[int], None]

_RECORD = struct.Struct("<II")

_FAILED = 1 << 31
"""Added to the place of a failure, which so is no number of a grammar."""


class Announcements:
    """Passes on the number of a grammar once all ranks have announced it. Any thread may call it."""

    def __init__(self, ranks: int, announce: Announce) -> None:
        """`ranks`: of the worker. `announce`: is called with each number, once."""
        self._ranks = ranks
        self._announce = announce
        self._counts: Counter[int] = Counter()
        self._lock = Lock()

    def __call__(self, number: int) -> None:
        """One more rank has compiled the grammar of this number."""
        with self._lock:
            self._counts[number] += 1
            if self._counts[number] < self._ranks:
                return
            del self._counts[number]
        self._announce(number)


def record(resets: int, number: int) -> bytes:
    """A rank's announcement for a pipe. `resets`: RESET orders that the rank had carried out before."""
    return _RECORD.pack(resets, number)


def failure(resets: int, place: int) -> bytes:
    """A rank's announcement that a step has raised an error at `place`, as `Failures` has it."""
    return _RECORD.pack(resets, _FAILED | place % _FAILED)


def place_of(number: int) -> int | None:
    """The place of a failure. None: `number` is a grammar's."""
    return number - _FAILED if number >= _FAILED else None


def records(stream: IO[bytes]) -> Iterator[tuple[int, int]]:
    """All announcements until the other end of the pipe is closed, as `record` takes them."""
    while len(packed := stream.read(_RECORD.size)) == _RECORD.size:
        yield _RECORD.unpack(packed)
