"""Answers are compared to the byte; what was refused, lost or changed is told apart."""

import json
from typing import Any

import httpx
import pytest

from ops.bench.robust.streams import Lost, Question, Refused, Streams, Tally, ask, questions

QUESTION = Question("/v1/completions", {"prompt": "A"})


def event(index: int, text: str, tokens: list[int], reason: str | None = None) -> str:
    choice = {"index": index, "text": text, "token_ids": tokens, "finish_reason": reason}
    return "data: " + json.dumps({"choices": [choice]}) + "\n\n"


def client(body: str, status: int = 200) -> httpx.AsyncClient:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, text=body)

    return httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://here")


DONE = "data: [DONE]\n\n"
WHOLE = event(0, "a", [1]) + event(1, "x", [7]) + event(0, "b", [2, 3], "stop") + event(1, "", [8], "length")


async def test_an_answer_is_put_together() -> None:
    heard: list[int] = []
    found = await ask(client(WHOLE + DONE), QUESTION, heard.append)
    assert found == {0: ("ab", [1, 2, 3], "stop"), 1: ("x", [7, 8], "length")}
    assert heard == [1, 1, 2, 1]


async def test_comments_are_passed_over() -> None:
    """The gateway sends some while nothing else comes, as while Redis is away."""
    assert await ask(client(":\n\n" + WHOLE + ":\n\n" + DONE), QUESTION) == await ask(
        client(WHOLE + DONE), QUESTION
    )


async def test_a_conversation_is_put_together() -> None:
    pieces: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": "Hi"}, {}]
    choices = [{"index": 0, "delta": piece, "finish_reason": None} for piece in pieces]
    body = "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices)
    assert await ask(client(body + DONE), QUESTION) == {0: ("Hi", [], "")}


async def test_what_does_not_begin_is_refused_and_what_does_not_end_is_lost() -> None:
    with pytest.raises(Refused, match="429: busy"):
        await ask(client("busy", 429), QUESTION)
    with pytest.raises(Lost, match="500: request_poisoned"):
        await ask(client("request_poisoned", 500), QUESTION)
    with pytest.raises(Lost, match="end mark"):
        await ask(client(WHOLE), QUESTION)
    with pytest.raises(Lost, match="gone"):
        await ask(client(event(0, "a", [1]) + 'data: {"error": {"message": "gone"}}\n\n'), QUESTION)


def test_lost_repeated_and_changed_tokens_are_counted() -> None:
    tally, due = Tally(), {0: ("abc", [1, 2, 3], "stop")}
    tally.compare(QUESTION, {0: ("abc", [1, 2, 3], "stop")}, due)
    tally.compare(QUESTION, {0: ("ab", [1, 2], "stop")}, due)
    tally.compare(QUESTION, {0: ("abcc", [1, 2, 3, 3], "stop")}, due)
    tally.compare(QUESTION, {0: ("abd", [1, 2, 4], "stop")}, due)
    tally.compare(QUESTION, {0: ("abc", [1, 2, 3], "length")}, due)
    assert (tally.accepted, tally.identical, tally.different) == (5, 1, 4)
    assert (tally.tokens_lost, tally.tokens_repeated, tally.lost) == (1, 1, 0)


def test_questions_differ_and_have_every_kind() -> None:
    asked = questions("m", 32)
    assert len({json.dumps(one.body, sort_keys=True) for one in asked}) == 32
    for has in (
        lambda one: one.path.endswith("chat/completions"),
        lambda one: one.body.get("temperature") == 0,
        lambda one: "seed" in one.body,
        lambda one: one.body.get("n") == 2,
        lambda one: "stop" in one.body,
    ):
        assert any(map(has, asked))
        assert not all(map(has, asked))


async def test_a_deployment_that_differs_in_peace_is_not_measured() -> None:
    answers = iter((WHOLE, event(0, "other", [9], "stop")))

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=next(answers) + DONE)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://here")
    with pytest.raises(RuntimeError, match="even in peace"):
        await Streams(http, [QUESTION]).in_peace()
