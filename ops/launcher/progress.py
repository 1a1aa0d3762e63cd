"""What is being done while a person waits: a spinner in a terminal, elsewhere a line for what takes long."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

LONG_SECONDS = 1.0
"""What takes longer gets a line where there is no terminal."""


class Progress:
    """Shows one thing at a time, until the block ends."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` prints a line."""
        self._say = say
        self._what = ""
        self._since = time.monotonic()
        self._said = False
        console = Console()
        self._spinner = Status("", console=console) if console.is_terminal and sys.stdout.isatty() else None

    def __enter__(self) -> Self:
        if self._spinner is not None:
            self._spinner.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spinner is not None:
            self._spinner.stop()

    def show(self, what: str) -> None:
        """What is being done now. Called again and again while it lasts."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._since, self._said = what, now, False
        seconds = now - self._since
        if self._spinner is not None:
            self._spinner.update(Text(f"{what}, {seconds:.0f} s" if seconds >= LONG_SECONDS else what))
        elif seconds >= LONG_SECONDS and not self._said:
            self._said = True
            self._say(f"wait    {what}")
