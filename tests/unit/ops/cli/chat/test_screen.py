"""How an answer is drawn in a terminal: what scrolls away and what is drawn again."""

import io

import pytest
from rich.console import Console
from rich.markdown import Markdown

from ops.cli.chat.errors import ChatError
from ops.cli.chat.screen import PlainScreen, TerminalScreen, _LastLines, settled, terminal
from ops.cli.chat.server import Delta

TEXT = """\
A **fox** and

- one
- two

| a | b |
|---|---|
| 1 | 2 |

```python
print("x")

y = 1
```

The end."""


def console() -> Console:
    """A terminal as wide as the text, without the codes that move the cursor."""
    return Console(file=io.StringIO(), width=80, force_terminal=False)


def drawn(*deltas: Delta, error: BaseException | None = None) -> str:
    screen = console()
    try:
        with TerminalScreen(screen).answering() as show:
            for delta in deltas:
                show(delta)
            if error is not None:
                raise error
    except (ChatError, KeyboardInterrupt):
        pass
    return "\n".join(line.rstrip() for line in screen.file.getvalue().splitlines())  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 200])
def test_however_it_comes_it_is_drawn_as_the_whole(size: int) -> None:
    whole = console()
    whole.print(Markdown(TEXT, hyperlinks=False))
    pieces = [Delta(text=TEXT[at : at + size]) for at in range(0, len(TEXT), size)]
    shown, _, pace = drawn(*pieces).rpartition("\n")
    expected = [line.rstrip() for line in whole.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    # Alone, a block may end with an empty line that it does not have among others.
    assert [line for line in shown.splitlines() if line] == [line for line in expected if line]
    assert "first after" in pace


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("", 0),
        ("one", 0),
        ("one\n\n", 0),
        ("one\n\ntwo", 5),
        ("one\n\n- a\n- b\n", 5),
        ("```\nx\n\ny\n", 0),
        ("```\nx\n```\nend", 10),
        ("a\u2028b\n\nc", 5),
    ],
)
def test_only_the_last_block_may_change(text: str, end: int) -> None:
    assert settled(text) == end


def test_thoughts_and_calls_stand_apart_from_the_text() -> None:
    shown = drawn(
        Delta(thought="Let me *see*.\nWell"),
        Delta(tool='\nlook {"at": '),
        Delta(tool="1}"),
        Delta(text="So."),
    )
    assert shown.splitlines()[:-1] == ["Let me *see*.", "Well", 'look {"at": 1}', "", "So."]


def test_what_steers_a_terminal_is_left_out() -> None:
    assert drawn(Delta(text="a\x1b[2J\x9bb\r"), Delta(tool="\x07c")).splitlines()[:2] == ["a[2Jb", "c"]


def test_the_pace_of_what_failed_is_not_said() -> None:
    assert "first after" in drawn(Delta(text="a"), error=KeyboardInterrupt())
    assert drawn(Delta(text="a"), error=ChatError("gone")) == "a"


def test_only_what_fits_the_terminal_is_drawn_again() -> None:
    small = Console(file=io.StringIO(), width=20, height=5)
    small.print(_LastLines(Markdown("\n\n".join("abcdefgh"))))
    lines = small.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.strip() for line in lines] == ["", "g", "", "h"]


def test_a_pipe_gets_the_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen()
    with screen.answering() as show:
        show(Delta(thought="hm"))
        show(Delta(text="*a*"))
        show(Delta(text="b"))
    screen.note("noted")
    assert capsys.readouterr() == ("*a*b\n", "noted\n")
    assert terminal() is None
