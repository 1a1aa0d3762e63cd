"""Where answers go: Markdown in a terminal, plain text in a pipe."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Literal, Protocol

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from ops.cli.chat.pace import Pace
from ops.cli.chat.server import Delta

Kind = Literal["thought", "tool", "text"]
Show = Callable[[Delta], None]

# An answer is text: what would steer the terminal is left out.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)}
_MARKDOWN = MarkdownIt("commonmark").enable("table")
_UPDATES = 12
"""Times a second that a terminal is drawn anew while an answer comes."""


class Screen(Protocol):
    """Shows answers, and notes about them."""

    def answering(self) -> AbstractContextManager[Show]:
        """Show an answer while the block runs: it calls the function with every delta."""

    def note(self, text: str) -> None:
        """Say something that is not of the model."""


class PlainScreen:
    """The text of answers and nothing else on standard output; notes on standard error."""

    @contextmanager
    def answering(self) -> Iterator[Show]:
        try:
            yield lambda delta: print(clean(delta.text), end="", flush=True)
        finally:
            print(flush=True)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)


class TerminalScreen:
    """Answers as Markdown, drawn as they come; thoughts and calls of functions dimmed."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def answering(self) -> AbstractContextManager[Show]:
        return _Drawing(self._console)

    def note(self, text: str) -> None:
        _note(self._console, text)


class _Drawing(AbstractContextManager[Show]):
    """An answer that is being drawn: what is settled scrolls away, the rest is drawn again and again."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._kind: Kind = "text"
        self._rest = ""
        self._begun = False
        self._pace = Pace()
        self._waiting = Spinner("dots", style="dim")
        self._live = Live(
            get_renderable=self._changing, console=console, transient=True, refresh_per_second=_UPDATES
        )

    def __enter__(self) -> Show:
        self._live.start()
        return self._show

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        self._settle(len(self._rest))
        if (said := self._pace.summary()) and (kind is None or kind is KeyboardInterrupt):
            _note(self._console, said)

    def _show(self, delta: Delta) -> None:
        self._pace.count(delta)
        self._add("thought", clean(delta.thought))
        self._add("tool", clean(delta.tool))
        self._add("text", clean(delta.text))

    def _add(self, kind: Kind, text: str) -> None:
        if not text:
            return
        if kind != self._kind:
            self._settle(len(self._rest))
            self._kind = kind
        # What was last on its line may have become the block before the last.
        perhaps_settled = self._rest.endswith("\n") or "\n" in text
        self._rest += text
        if perhaps_settled:
            self._settle(settled(self._rest) if kind == "text" else self._rest.rfind("\n") + 1)

    def _settle(self, end: int) -> None:
        done, self._rest = self._rest[:end].strip("\n"), self._rest[end:]
        if done.strip():
            if self._begun and self._kind == "text":
                self._console.print()
            self._console.print(self._drawn(done))
            self._begun = True

    def _changing(self) -> RenderableType:
        if not self._rest.strip():
            return self._waiting
        return _LastLines(self._drawn(self._rest))

    def _drawn(self, text: str) -> RenderableType:
        if self._kind == "text":
            return Markdown(text, hyperlinks=False)
        return Text(text, style="dim italic" if self._kind == "thought" else "dim cyan")


class _LastLines:
    """As much of the end of something as the terminal is high: only that can be drawn again."""

    def __init__(self, whole: RenderableType) -> None:
        self._whole = whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._whole, options, pad=False)
        for line in lines[-max(1, console.height - 1) :]:
            yield from line
            yield Segment.line()


def settled(text: str) -> int:
    """Characters of a growing Markdown text in blocks that will not change any more: all but the last."""
    starts = [token.map[0] for token in _MARKDOWN.parse(text) if token.level == 0 and token.map is not None]
    return sum(len(line) + 1 for line in text.split("\n")[: starts[-1]]) if starts else 0


def clean(text: str) -> str:
    """The text without characters that would steer the terminal."""
    return text.translate(_CONTROLS)


def _note(console: Console, text: str) -> None:
    console.print(Text(clean(text), style="dim"))


def terminal() -> Console | None:
    """The terminal that standard input and output are; None if one of them is none."""
    console = Console()
    return console if console.is_terminal and sys.stdin.isatty() else None
