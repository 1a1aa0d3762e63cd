"""Kernels of the library, and tapes of their calls: what a tape has recorded is repeated by one call.

A step of a small model makes hundreds of calls, each of which takes Python longer than the kernel computes. A
tape has the arguments of each call as words of 64 bits, so that C++ can make all of them (`src/tape.h`):

    │ address of quire_norm_play │ 8 │ dtype │ .. │ y │ address of quire_linear_play │ 5 │ matrix │ ..

Numbers and addresses are those of the recorded call. So whatever a call reads or writes must stay where it
is.
"""

import ctypes
import struct
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NO_BITS_ABOVE = (1 << 64) - 1


class _Recording(threading.local):
    """What the calling thread records."""

    tape: "Tape | None" = None


_recording = _Recording()


class Kernel:
    """A function of the library that computes. Its calls can be recorded."""

    def __init__(self, library: ctypes.CDLL, name: str, *types: Any) -> None:
        """`types`: of the arguments; c_float, c_void_p, or an integer's."""
        self._call = library[name]
        self._call.argtypes, self._call.restype = types, None
        self._play = ctypes.cast(library[f"{name}_play"], ctypes.c_void_p).value or 0
        self._types = types

    def __call__(self, *arguments: int | float | None) -> None:
        """Numbers and addresses; None is null."""
        self._call(*arguments)
        if _recording.tape is not None:
            words = map(_word, self._types, arguments)
            _recording.tape.words.extend((self._play, len(arguments), *words))


class Tape:
    """Recorded calls of kernels."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.words = array("Q")
        self._play = library["quire_play"]
        self._play.argtypes, self._play.restype = (ctypes.c_void_p, ctypes.c_int64), None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Append the calls of kernels that this thread makes within `with` to the tape."""
        _recording.tape = self
        try:
            yield
        finally:
            _recording.tape = None

    def play(self) -> None:
        """Repeat all calls in their order. Other threads of Python run meanwhile."""
        address, words = self.words.buffer_info()
        self._play(address, words)


def _word(kind: Any, value: int | float | None) -> int:
    if kind is ctypes.c_float:
        bits: int = struct.unpack("=I", struct.pack("=f", value))[0]
        return bits
    return int(value or 0) & _NO_BITS_ABOVE
