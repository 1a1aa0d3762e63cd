"""What becomes of what a gateway tells, or does not tell."""

import io
import json
import sys
from types import SimpleNamespace

import httpx
import pytest
from rich.console import Console

from gateway.http.sse import KEEP_ALIVE_SECONDS
from ops.cli.top import watch
from ops.cli.top.view import View
from ops.cli.top.watch import _show_once, changes, follow
from ops.runtime.errors import LaunchError

LOOK = {
    **{"scheduler": "scheduler-1", "model": "m", "lost": [], "workers": []},
    "totals": {"prompt_tokens": 0, "cached_tokens": 0, "preemptions": 0, "waiting": 0},
}
PROCESS = {"id": "scheduler-1", "service": "scheduler", "pid": 1, "epoch": 1, "info": {}}


def client(status: int, text: str) -> httpx.Client:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/inside"
        return httpx.Response(status, text=text)

    return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://there")


def stream(*events: object) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events)


def test_changes_are_read_in_order() -> None:
    assert list(changes(client(200, stream({"begin": True}, LOOK)))) == [{"begin": True}, LOOK]


def test_once_it_ends_as_soon_as_all_is_told() -> None:
    console = Console(file=io.StringIO(), width=100)
    told = stream({"begin": True}, {"processes": [PROCESS], "ended": []}, LOOK, {"never": "read"})
    assert _show_once(client(200, told), View("u", live=False), console) == 0
    assert "scheduler-1" in console.file.getvalue()  # type: ignore[attr-defined]


def test_what_is_missing_in_the_end_shows_in_the_status() -> None:
    console = Console(file=io.StringIO(), width=100)
    told = stream({"begin": True}, {"processes": [PROCESS], "ended": []})
    assert _show_once(client(200, told), View("u", live=False), console) == 1


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (403, '{"error": {"message": "This API key may not look inside."}}', "may not look inside"),
        (404, "nothing here", "http://there/v1/inside answers with status 404"),
        (500, "[]", "answers with status 500"),
    ],
)
def test_who_refuses_is_quoted(status: int, text: str, said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        list(changes(client(status, text)))


def test_a_gateway_that_fails_for_a_moment_is_away_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    told = stream({"begin": True}, {"processes": [PROCESS], "ended": []}, LOOK)
    answers = [client(200, told), client(502, "bad gateway"), client(200, told), client(403, "[]")]
    there = client(200, told)
    away: list[bool] = []

    class Live:
        """Ends when the gateway refuses."""

        def __init__(self, view: View, **_: object) -> None:
            self.view = view

        def __enter__(self) -> None:
            monkeypatch.setattr(watch.time, "sleep", lambda _: away.append(self.view.away))

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(watch, "Live", Live)
    monkeypatch.setattr(watch, "Console", lambda: SimpleNamespace(is_dumb_terminal=False))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(watch.httpx, "Client", lambda **_: there)
    whole = watch.changes
    monkeypatch.setattr(watch, "_changes_or_raise", lambda _: None)
    monkeypatch.setattr(watch, "changes", lambda _: whole(answers.pop(0)))
    with pytest.raises(LaunchError, match="status 403"):
        follow("http://there", once=False)
    assert away == [False, True, False]


def test_a_gateway_that_falls_silent_is_noticed() -> None:
    """It sends comments where nothing else happens."""
    assert watch.TIMEOUT.read is not None
    assert KEEP_ALIVE_SECONDS < watch.TIMEOUT.read < 5 * KEEP_ALIVE_SECONDS


@pytest.mark.parametrize(
    ("terminal", "variables"), [(False, {"FORCE_COLOR": "1"}), (True, {"TERM": "dumb"})], ids=["pipe", "dumb"]
)
def test_where_nothing_can_be_drawn_over_it_shows_how_things_are_and_ends(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    told = stream({"begin": True}, {"processes": [PROCESS], "ended": []}, LOOK)
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    monkeypatch.setattr(watch, "Console", lambda: console)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: terminal))
    monkeypatch.setattr(watch, "_changes_or_raise", lambda _: pytest.fail("it would go on"))
    there = client(200, told)
    monkeypatch.setattr(watch.httpx, "Client", lambda **_: there)
    assert follow("http://there", once=False) == 0
    assert "scheduler-1" in console.file.getvalue()  # type: ignore[attr-defined]


def test_where_no_server_is_it_says_so() -> None:
    with pytest.raises(LaunchError, match=r"no server answers at http://127\.0\.0\.1:1"):
        follow("http://127.0.0.1:1", once=True)
