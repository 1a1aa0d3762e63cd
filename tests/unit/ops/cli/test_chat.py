"""The terminal chat against a small HTTP server that says what a test tells it."""

import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from ops.cli.chat import Conversation, chat
from ops.launcher.redis_server import free_port


def event(content: str) -> str:
    return "data: " + json.dumps(
        {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]}
    )


class Gateway:
    """Answers a turn with the next of `answers`: lines of a stream, or a status with a JSON body."""

    def __init__(self) -> None:
        self.answers: list[list[str] | tuple[int, Any]] = []
        self.models = ["quire-tiny", "other"]
        self.asked: list[dict[str, Any]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(200, json.dumps({"data": [{"id": name} for name in gateway.models]}))

            def do_POST(self) -> None:
                gateway.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                answer = gateway.answers.pop(0)
                if isinstance(answer, tuple):
                    self.reply(answer[0], json.dumps(answer[1]))
                else:
                    self.reply(200, "".join(f"{line}\n\n" for line in answer))

            def reply(self, status: int, body: str) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    thread = threading.Thread(target=gateway.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield gateway
    gateway.server.shutdown()
    gateway.server.server_close()
    thread.join()


Type = Callable[[str], None]


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> Type:
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_conversation_is_kept_and_started_over(
    gateway: Gateway, type_in: Type, capsys: pytest.CaptureFixture[str]
) -> None:
    role = 'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}'
    usage = 'data: {"choices": [], "usage": {}}'
    gateway.answers = [
        [": hello", role, event("A "), event("fox \x1b[2J😀."), usage, "data: [DONE]"],
        [event("Yes."), "data: [DONE]"],
        [event("New."), "data: [DONE]"],
    ]
    type_in("Who?\n\nSure?\n/new\nAgain\n/exit\nnever\n")
    assert chat(gateway.url, None) == 0
    assert capsys.readouterr().out == "A fox [2J😀.\nYes.\nNew.\n"
    first, second, third = (asked["messages"] for asked in gateway.asked)
    assert first == [{"role": "user", "content": "Who?"}]
    assert second == [
        *first,
        {"role": "assistant", "content": "A fox \x1b[2J😀."},
        {"role": "user", "content": "Sure?"},
    ]
    assert third == [{"role": "user", "content": "Again"}]
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
    ],
)
def test_a_turn_that_fails_is_forgotten(
    gateway: Gateway, type_in: Type, capsys: pytest.CaptureFixture[str], answer: Any, said: str
) -> None:
    gateway.answers = [answer, [event("Fine."), "data: [DONE]"]]
    type_in("One\nTwo\n")
    assert chat(gateway.url, "other") == 1
    output = capsys.readouterr()
    assert output.out.endswith("Fine.\n")
    assert said in output.err
    assert output.err.startswith("quire chat: ")
    assert output.err.count("\n") == 1
    assert gateway.asked[1]["messages"] == [{"role": "user", "content": "Two"}]


def test_an_answer_that_is_stopped_is_kept_as_far_as_it_got(gateway: Gateway) -> None:
    gateway.answers = [[event("One "), event("two "), event("three"), "data: [DONE]"]]
    with httpx.Client(base_url=gateway.url) as client:
        conversation = Conversation(client, "quire-tiny")
        pieces = conversation.say("Count")
        assert [next(pieces), next(pieces)] == ["One ", "two "]
        pieces.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": "One two "}


def test_ctrl_c_ends_the_answer_and_not_the_chat(
    gateway: Gateway, type_in: Type, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.answers = [[event("One "), event("two"), "data: [DONE]"], [event("Fine."), "data: [DONE]"]]

    def stop_at_two(event: Any) -> Iterator[str]:
        for choice in event["choices"]:
            if choice["delta"]["content"] == "two":
                raise KeyboardInterrupt
            yield choice["delta"]["content"]

    monkeypatch.setattr("ops.cli.chat._pieces", stop_at_two)
    type_in("Count\nGo on\n")
    assert chat(gateway.url, None) == 0
    assert capsys.readouterr().out == "One \nFine.\n"
    assert gateway.asked[1]["messages"][1] == {"role": "assistant", "content": "One "}


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert chat(url, None) == 1
    assert capsys.readouterr().err == f"quire chat: nothing answers at {url}; `quire up` starts a server\n"


def test_no_model(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.models = []
    assert chat(gateway.url, None) == 1
    assert "offers no model" in capsys.readouterr().err
