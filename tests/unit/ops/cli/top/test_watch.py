"""What becomes of what a gateway tells, or does not tell."""

import io
import json

import httpx
import pytest
from rich.console import Console

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


def test_where_no_server_is_it_says_so() -> None:
    with pytest.raises(LaunchError, match=r"no server answers at http://127\.0\.0\.1:1"):
        follow("http://127.0.0.1:1", once=True)
