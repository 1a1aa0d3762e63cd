"""Turns of threads that would take each other's cores."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


class Turns:
    """A lock for threads that compute: who has waited longest has the next turn.

    So a long computation that passes its turn on now and then goes on beside many short ones, and they beside
    it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = deque[threading.Event]()
        self._taken = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()  # it is taken by that thread now
            else:
                self._taken = False

    @contextmanager
    def without(self) -> Iterator[None]:
        """Give the turn away, and wait for one in the end. To be called by the thread that has one."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def pass_on(self) -> None:
        """Let who waits have a turn, if somebody does. To be called by the thread that has one."""
        if self._waiting:
            self.__exit__()
            self.__enter__()
