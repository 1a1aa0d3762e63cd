"""Reading turns: from a pipe, and from keys."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from ops.cli.chat.prompt import is_open, lines, typed, unquoted

INTERRUPTED = "interrupted"


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield keys


def read(history: Path, keys: PipeInput, pressed: Sequence[str]) -> list[str]:
    """The turns that come of these keys: pressed for one prompt after the other, and at last Ctrl-D."""
    noted: list[str] = []
    prompts = iter([*pressed, "\x04"])
    keys.send_text(next(prompts))

    def interrupted() -> None:
        noted.append(INTERRUPTED)
        keys.send_text(next(prompts))

    for text in typed(history, ["/new", "/retry"], interrupted):
        noted.append(text)
        keys.send_text(next(prompts))
    return noted


@pytest.mark.parametrize(
    ("pressed", "turns"),
    [
        (["one\r", "two\r"], ["one", "two"]),
        (["one\x1b\rtwo\r"], ["one\ntwo"]),
        (['"""one\rtwo\r"""\r'], ["one\ntwo"]),
        (["half\x03", "whole\r"], [INTERRUPTED, "whole"]),
        (["one\r", "\x1b[A\r"], ["one", "one"]),
    ],
)
def test_keys(keys: PipeInput, tmp_path: Path, pressed: list[str], turns: list[str]) -> None:
    assert read(tmp_path / "history", keys, pressed) == turns


def test_the_history_outlives_the_chat(keys: PipeInput, tmp_path: Path) -> None:
    history = tmp_path / "new" / "history"
    read(history, keys, ["before\r"])
    assert read(history, keys, ["\x1b[A\r"]) == ["before"]
    assert history.stat().st_mode & 0o077 == 0


def test_without_a_place_for_it_the_history_is_in_memory(keys: PipeInput, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert read(tmp_path / "file" / "history", keys, ["one\r", "\x1b[A\r"]) == ["one", "one"]


def test_lines_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('a\n"""b"""\n"""\nc\n\nd\n"""\n"""never closed'))
    assert list(lines()) == ["a", "b", "c\n\nd", "never closed"]


@pytest.mark.parametrize(
    ("text", "still_open", "content"),
    [
        ("a", False, "a"),
        ('a """', False, 'a """'),
        ('"""', True, ""),
        ('""""""', False, ""),
        ('"""a', True, "a"),
        (' """a\nb""" ', False, "a\nb"),
    ],
)
def test_quotes(text: str, still_open: bool, content: str) -> None:
    assert is_open(text) is still_open
    assert unquoted(text) == content
