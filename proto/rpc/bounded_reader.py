"""hiredis's parser, with a bound on what it holds: whoever may write to Redis may write entries of 512 MiB.

    *2  $15 1763800000000-0  *2  $1 e  $536870912 …512 MiB…      comes from the socket
    *2  $15 1763800000000-0  *2  $1 e  -TOOLARGE 536870912       goes to hiredis

A string that is too large is dropped while it comes, and an error takes its place in the reply. So is a list
within a reply, such as an entry's fields, if it has too many elements. If all replies of a pipeline are too
large together, strings of more than 64 KiB are dropped too (`LATER`): they are read again. Beyond twice that
bound all are dropped but those of a few bytes, such as entries' ids.

Almost all that comes from the socket ends with the last byte of the last reply that is awaited. Then nothing
is looked at here. Only if it ends before that, its headers are read.
"""

from typing import Any

import hiredis

from proto.rpc.bus import MAX_ENTRY_BYTES

MAX_HELD = 64 * 2**20
"""Bytes of strings in the replies of one pipeline, above which strings of more than `SMALL` wait."""
SMALL = 64 * 2**10
TINY = 64
"""Bytes of strings that are held in any case."""
MAX_ELEMENTS = 2**10
"""Elements of a list within a reply."""
TOO_LARGE, LATER, TOO_MANY = "TOOLARGE", "LATER", "TOOMANY"

_LIST, _STRING = b"*"[0], b"$"[0]
_END = b"\r\n"


class BoundedReader:
    """`feed` it, and take replies with `gets` until that returns False. Then call `paused`, if it is `inside`
    a reply or if further replies are awaited."""

    def __init__(self) -> None:
        self.held = 0
        """Bytes of strings that were seen. Set to 0 with each pipeline."""
        self.passed = 0
        """Times that a part of a reply came. It grows for as long as a long reply comes."""
        self._reader = hiredis.Reader()
        self.gets = self._reader.gets
        self.inside = False
        """Whether what comes next is the rest of a reply, as the fields below say. If not, it begins one."""
        self._missing = 0
        """Elements until the reply is complete, those of its lists counted one by one."""
        self._string = 0
        """Bytes until the string that has begun is complete."""
        self._line = b""
        """The beginning of a header."""
        self._drop_until: int | None = None
        """All is dropped until no more elements than this are missing."""
        self._changed = False
        """Whether something of the reply was dropped."""
        self._start = 0
        """Where in the data the reply begins."""

    def feed(self, data: bytes) -> None:
        """Raises `hiredis.ProtocolError` only in `gets`."""
        if not self.inside:
            self._reader.feed(data)
            return
        self.passed += 1
        for piece in self._pass(data):
            self._reader.feed(piece)

    def paused(self, data: bytes, complete: bool) -> None:
        """`data`: what was fed last. `complete`: all replies that are awaited have been taken."""
        if not self.inside and not complete:
            self._inspect(data)
        # A reply whose end is dropped is taken before all of it has come.
        self.inside = bool(self._missing or self._line)

    def _inspect(self, data: bytes) -> None:
        """Find out where in a reply the data ends. It begins with a reply, and hiredis has had it."""
        held = self.held
        self._pass(data)
        if self._changed or self._line:
            # hiredis gets the reply that has begun once more, as it is to be.
            self._reader = hiredis.Reader()
            self.gets = self._reader.gets
            rest, self.held = data[self._start :], held
            self._missing = self._string = 0
            self._line, self._drop_until = b"", None
            for piece in self._pass(rest):
                self._reader.feed(piece)

    def _pass(self, data: bytes) -> list[bytes]:
        """Go on reading headers; what of `data` hiredis is to get."""
        data, self._line = self._line + data, b""
        pieces: list[bytes] = []
        kept = at = 0
        """Everything from `kept` to `at` goes to hiredis, unless it is dropped."""
        while at < len(data):
            if self._string:
                step = min(self._string, len(data) - at)
                self._string -= step
                at += step
                if self._string == 0 and self._element():
                    kept = at
                continue
            end = data.find(_END, at)
            if end < 0:
                self._line = data[at:]
                if not self._missing:
                    self._start, self._changed = at, False
                break
            whole = not self._missing
            if whole:
                self._start, self._changed, self._missing = at, False, 1
            kind, number = data[at], _number(data, at + 1, end)
            if self._drop_until is None and (error := self._refusal(kind, number, whole)):
                pieces += data[kept:at], f"-{error} {number}\r\n".encode()
                self._drop_until = self._missing - 1
                self._changed = True
            at = end + 2
            if kind == _LIST and number > 0:
                self._missing += number - 1
            elif kind == _STRING and number >= 0:
                self._string = number + 2
            elif self._element():
                kept = at
        if self._drop_until is None:
            pieces.append(data[kept:at])
        return pieces

    def _element(self) -> bool:
        """An element is complete; whether it was the last one that is dropped."""
        self._missing -= 1
        if self._drop_until is None or self._missing > self._drop_until:
            return False
        self._drop_until = None
        return True

    def _refusal(self, kind: int, number: int, whole: bool) -> str:
        """Why a string or list of this size is dropped; empty if it is not. `whole`: it is a whole reply."""
        if kind == _STRING:
            if number > MAX_ENTRY_BYTES:
                return TOO_LARGE
            beyond = self.held + number - MAX_HELD
            if (number > SMALL and beyond > 0) or (number > TINY and beyond > MAX_HELD):
                return LATER
            self.held += number
        elif kind == _LIST and number > MAX_ELEMENTS and not whole:
            return TOO_MANY
        return ""


def size_of(error: Any) -> int:
    """The size in an error that took a string's place; 0 for anything else."""
    if not isinstance(error, hiredis.ReplyError):
        return 0
    word, _, size = str(error).partition(" ")
    return int(size) if word in (TOO_LARGE, LATER) else 0


def _number(data: bytes, start: int, end: int) -> int:
    """The number in a header; -1 where there is none."""
    text = data[start:end]
    return int(text) if text.lstrip(b"-").isdigit() else -1
