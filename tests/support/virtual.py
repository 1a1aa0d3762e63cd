"""Virtual time: a test whose subject is time waits for nothing, however slow the machine is."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on at once to the next timer whenever nothing else is left to do.

    For what happens in one thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seconds = 0.0
        selector: selectors.BaseSelector = self._selector  # type: ignore[attr-defined]
        select = selector.select

        def at_once(timeout: float | None = None) -> Any:
            events = select(None if timeout is None else 0)
            if not events and timeout:
                self._seconds += timeout
            return events

        selector.select = at_once  # type: ignore[method-assign]

    def time(self) -> float:
        return self._seconds

    def stall(self, seconds: float) -> None:
        """Let time pass without a turn of the loop."""
        self._seconds += seconds


class VirtualClock:
    """In place of the module `time`, where virtual time is to be seen."""

    @staticmethod
    def monotonic() -> float:
        return asyncio.get_running_loop().time()


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in virtual time."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test(*arguments, **named))

    return run
