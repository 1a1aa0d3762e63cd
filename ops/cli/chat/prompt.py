"""Where turns come from: a terminal with history and keys, or lines of a pipe."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

QUOTES = '"""'
"""Between two of these a turn may have several lines."""


def lines() -> Iterator[str]:
    """Turns from standard input, a line each, or several lines between quotes."""
    gathered: list[str] = []
    for line in sys.stdin:
        gathered.append(line.rstrip("\n"))
        if not is_open("\n".join(gathered)):
            yield unquoted("\n".join(gathered))
            gathered.clear()
    if gathered:
        yield unquoted("\n".join(gathered))


def typed(history: Path, words: Iterable[str], interrupted: Callable[[], None]) -> Iterator[str]:
    """Turns that a person types. Ctrl-C calls `interrupted`, Ctrl-D ends them.

    `history`: a file with what was typed before, for the arrow keys; `words`: what Tab completes.
    """
    session: PromptSession[str] = PromptSession(
        [("class:prompt", "> ")],
        style=Style.from_dict({"prompt": "bold ansicyan"}),
        history=_history(history),
        completer=WordCompleter(list(words), sentence=True),
        complete_while_typing=False,
        enable_history_search=True,
        key_bindings=_keys(),
        prompt_continuation="  ",
    )
    buffer = session.default_buffer
    session.multiline = Condition(lambda: is_open(buffer.text))
    while True:
        try:
            yield unquoted(session.prompt())
        except KeyboardInterrupt:
            interrupted()
        except EOFError:
            return


def is_open(text: str) -> bool:
    """Whether the text begins with quotes that are not closed yet."""
    begun = text.lstrip()
    return begun.startswith(QUOTES) and not begun[len(QUOTES) :].rstrip().endswith(QUOTES)


def unquoted(text: str) -> str:
    """The text between quotes, or the whole text if it does not begin with them."""
    if not text.lstrip().startswith(QUOTES):
        return text
    return text.strip().removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")


def _keys() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def _history(path: Path) -> History:
    """Kept in a file that only this user may read, or in memory where there can be none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
