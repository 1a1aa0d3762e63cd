"""The chat against a scripted server: through a pipe, and in a terminal with a person's keys."""

import fcntl
import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from ops.cli.chat.session import chat
from ops.launcher.redis_server import free_port
from tests.support.scripted_gateway import DONE, ScriptedGateway, event

Type = Callable[[str], None]


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Type:
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_conversation_is_kept_and_started_over(
    gateway: ScriptedGateway, type_in: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    role = 'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}'
    usage = 'data: {"choices": [], "usage": {}}'
    gateway.answers = [
        [": hello", role, event("A "), event("fox \x1b[2J😀."), usage, DONE],
        [event("Yes.", reasoning_content="Well."), DONE],
        [event("New."), DONE],
    ]
    type_in('Who?\n\nSure?\n/new\n"""\nAgain\nand again\n"""\n/exit\nnever\n')
    assert chat(gateway.url, None) == 0
    assert capsys.readouterr().out == "A fox [2J😀.\nYes.\nNew.\n"
    first, second, third = (asked["messages"] for asked in gateway.asked)
    assert first == [{"role": "user", "content": "Who?"}]
    assert second == [
        *first,
        {"role": "assistant", "content": "A fox \x1b[2J😀."},
        {"role": "user", "content": "Sure?"},
    ]
    assert third == [{"role": "user", "content": "Again\nand again"}]
    assert {(asked["model"], asked["stream"]) for asked in gateway.asked} == {("quire-tiny", True)}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((429, {"error": {"message": "too many requests"}}), "too many requests"),
        ((502, "?"), "answered 502 Bad Gateway"),
        ([event("Hal"), 'data: {"error": {"message": "the worker is gone"}}'], "the worker is gone"),
        ([event("Hal")], "the answer broke off"),
        (["data: {"], "is not what an OpenAI-compatible server says"),
        (["data: {}"], "is not what an OpenAI-compatible server says"),
        (['data: {"choices": [{"delta": 1}]}'], "is not what an OpenAI-compatible server says"),
    ],
)
def test_a_turn_that_fails_is_forgotten(
    gateway: ScriptedGateway, type_in: Type, capsys: pytest.CaptureFixture[str], answer: Any, said: str
) -> None:
    gateway.answers = [answer, [event("Fine."), DONE]]
    type_in("One\nTwo\n")
    assert chat(gateway.url, "other") == 1
    output = capsys.readouterr()
    assert output.out.endswith("Fine.\n")
    assert said in output.err
    assert output.err.startswith("quire chat: ")
    assert output.err.count("\n") == 1
    assert gateway.asked[1]["messages"] == [{"role": "user", "content": "Two"}]


def test_commands_are_not_for_the_model(
    gateway: ScriptedGateway, type_in: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answers = [[event("Hm."), DONE]]
    type_in("/help\n/fly\n /tmp/x is a path\n")
    assert chat(gateway.url, None) == 1
    output = capsys.readouterr()
    assert "/system TEXT" in output.err
    assert "there is no command /fly" in output.err
    assert output.out == "Hm.\n"
    assert [asked["messages"][0]["content"] for asked in gateway.asked] == [" /tmp/x is a path"]


def test_ctrl_c_ends_the_answer_and_not_the_chat(
    gateway: ScriptedGateway,
    type_in: Type,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway.answers = [[event("One "), event("two"), DONE], [event("Fine."), DONE]]

    def stop_at_two(text: str) -> str:
        if text == "two":
            raise KeyboardInterrupt
        return text

    monkeypatch.setattr("ops.cli.chat.screen.clean", stop_at_two)
    type_in("Count\nGo on\n")
    assert chat(gateway.url, None) == 0
    assert capsys.readouterr().out == "One \nFine.\n"
    assert gateway.asked[1]["messages"][1] == {"role": "assistant", "content": "One two"}


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert chat(url, None) == 1
    assert capsys.readouterr().err == f"quire chat: nothing answers at {url}; `quire up` starts a server\n"


def test_no_model(gateway: ScriptedGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.models = []
    assert chat(gateway.url, None) == 1
    assert (
        capsys.readouterr().err == f"quire chat: {gateway.url} does not offer a model that generates text\n"
    )


class Terminal:
    """`quire chat` in a pseudo-terminal; it ends with the block."""

    def __init__(self, url: str, state: Path) -> None:
        self._fd, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ops.cli.main", "chat", "--url", url],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(state), "NO_COLOR": "1"},
            start_new_session=True,
            preexec_fn=self._take_terminal,
        )
        os.close(theirs)
        self._shown, self._seen = "", 0

    @staticmethod
    def _take_terminal() -> None:
        """Ctrl-C becomes a signal, and is not ignored, as it is by what a shell starts in the background."""
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def shows(self, text: str) -> None:
        """Return once the text has been written, after what was waited for before."""
        assert self._shows(text, 60), self._shown

    def interrupt(self, shown: str) -> None:
        """Press Ctrl-C until the text is written. Python may notice it only when the system call that follows
        returns, if it comes right before that: then a person presses it again."""
        for _ in range(12):
            self.press("\x03")
            if self._shows(shown, 5):
                return
        raise AssertionError(self._shown)

    def _shows(self, text: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (place := self._plain().find(text, self._seen)) < 0:
            if not select.select([self._fd], [], [], max(0, deadline - time.monotonic()))[0]:
                return False
            if time.monotonic() > deadline:
                return False
            new = os.read(self._fd, 65536).decode(errors="replace")
            self._shown += new
            for _ in range(new.count("\x1b[6n")):  # where is the cursor?
                self.press("\x1b[1;1R")
        self._seen = place + len(text)
        return True

    def _plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._shown)


def test_a_person_in_a_terminal(gateway: ScriptedGateway, tmp_path: Path) -> None:
    """Markdown is drawn, Ctrl-C stops an answer that hangs, an arrow brings back a turn, Tab completes."""
    stopped = threading.Event()
    gateway.answers = [
        [event("**bold** fox"), DONE],
        [event("endless"), stopped],
        [event("again"), DONE],
    ]
    with Terminal(gateway.url, tmp_path) as terminal:
        _talk(terminal, stopped)
    assert [asked["messages"][-1]["content"] for asked in gateway.asked] == ["Who?", "Go", "Go"]
    assert gateway.asked[2]["messages"][3] == {"role": "assistant", "content": "endless"}
    history = tmp_path / "quire" / "chat-history"
    assert "Who?" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def _talk(terminal: Terminal, stopped: threading.Event) -> None:
    terminal.shows("/help lists")
    terminal.shows("> ")
    terminal.press("Who?\r")
    terminal.shows("bold fox")
    terminal.shows("first after")
    terminal.shows("> ")
    terminal.press("Go\r")
    terminal.shows("endless")
    terminal.interrupt(shown="1 token")
    stopped.set()
    terminal.shows("> ")
    terminal.press("\x1b[A\r")
    terminal.shows("again")
    terminal.shows("> ")
    terminal.press("/ne\t")
    terminal.shows("w")
    terminal.press("\r")
    terminal.shows("a new conversation")
    terminal.shows("> ")
    terminal.press("\x04")
    assert terminal.process.wait(60) == 0


def test_a_url_without_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    assert chat("127.0.0.1:8000", None) == 1
    assert capsys.readouterr().err == "quire chat: 127.0.0.1:8000 is no URL, such as http://127.0.0.1:8000\n"
