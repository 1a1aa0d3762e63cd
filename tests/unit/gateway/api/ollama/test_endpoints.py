"""Ollama's API: answers, streams and errors in its shape."""

import json
from datetime import datetime

import grpc
import httpx
import pytest

from gateway.api.ollama.answer_schema import (
    OllamaChatAnswer,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaError,
    OllamaGenerated,
    OllamaModels,
    OllamaShown,
)
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta
from tests.unit.gateway.api.anthropic.test_messages import STORY, WHOLE, says
from tests.unit.gateway.conftest import app_of

MESSAGES = [{"role": "user", "content": "A fox?"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
KINDS = {"/api/chat": OllamaChatAnswer, "/api/generate": OllamaGenerated}


async def asked(gateway, path, **fields):
    """The objects of an answer, each of which is as documented, and its media type."""
    what = {"prompt": "A fox?"} if path == "/api/generate" else {"messages": MESSAGES}
    answer = await gateway.http.post(path, json={"model": "m", **what, **fields})
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    for line in lines:
        KINDS[path].model_validate(line, strict=True)
    return lines, answer.headers["content-type"]


def text_of(line):
    return line["response"] if "response" in line else line["message"]["content"]


@pytest.mark.parametrize("path", KINDS)
async def test_a_stream_is_the_collected_answer(gateway, path):
    (whole,), kind = await asked(gateway, path, stream=False)
    assert kind == "application/json"
    assert text_of(whole) == STORY
    (*pieces, last), kind = await asked(gateway, path)
    assert kind.startswith("application/x-ndjson")
    assert "".join(map(text_of, pieces)) == STORY
    assert {piece["done"] for piece in pieces} == {False}
    assert text_of(last) == ""
    for end in (whole, last):
        assert (end["done"], end["done_reason"], end["model"]) == (True, "stop", "m")
        assert (end["prompt_eval_count"], end["eval_count"]) == (3, 12)
        assert end["total_duration"] == end["prompt_eval_duration"] + end["eval_duration"]
        assert datetime.fromisoformat(end["created_at"]).tzinfo is not None


@pytest.mark.parametrize("path", KINDS)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_is_cut(gateway, path, stream):
    lines, _ = await asked(gateway, path, options={"num_predict": 2}, stream=stream)
    assert (lines[-1]["done_reason"], lines[-1]["eval_count"]) == ("length", 2)


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_thoughts_and_calls(gateway, size):
    gateway.tokenizer.generate = says(WHOLE, size)
    (whole,), _ = await asked(gateway, "/api/chat", tools=TOOLS, stream=False)
    lines, _ = await asked(gateway, "/api/chat", tools=TOOLS)
    pieces = [line["message"] for line in lines]
    together = {
        "role": "assistant",
        "thinking": "".join(piece.get("thinking", "") for piece in pieces),
        "content": "".join(piece["content"] for piece in pieces),
        "tool_calls": [call for piece in pieces for call in piece.get("tool_calls", [])],
    }
    for message in (whole["message"], together):
        calls = message["tool_calls"]
        assert len({call.pop("id") for call in calls}) == 2
        assert [call["function"] for call in calls] == [
            {"name": "look", "arguments": {"at": place}} for place in ("owl", "fox")
        ]
    assert whole["message"] == together
    assert (together["thinking"], together["content"]) == ("Where?", "I look.")


async def test_the_thought_of_a_prompt(gateway):
    gateway.tokenizer.generate = says("<think>Where?</think>There.")
    (whole,), _ = await asked(gateway, "/api/generate", stream=False)
    assert (whole["thinking"], whole["response"]) == ("Where?", "There.")


@pytest.mark.parametrize("raw", [True, False])
async def test_a_raw_prompt_is_the_whole_text(gateway, raw):
    await asked(gateway, "/api/generate", raw=raw, system="Be brief.")
    (request,) = gateway.tokenizer.requests
    assert request.WhichOneof("prompt") == ("text" if raw else "chat")
    assert request.text == ("A fox?" if raw else "")
    assert not request.HasField("max_tokens"), "up to the end of the context"


@pytest.mark.parametrize("path", KINDS)
async def test_an_empty_request_asks_whether_the_model_is_there(gateway, path):
    (line,), _ = await asked(gateway, path, messages=[], prompt="")
    assert (line["done"], line["done_reason"], text_of(line)) == (True, "load", "")
    assert gateway.tokenizer.requests == []


async def test_models(gateway):
    for path in ("/api/tags", "/api/ps"):
        answer = await gateway.http.get(path)
        (model,) = OllamaModels.model_validate(answer.json(), strict=True).models
        assert (model.name, model.model) == ("m", "m")
    for ask in ({"model": "m"}, {"model": "m:latest"}, {"name": "m"}):
        answer = await gateway.http.post("/api/show", json=ask)
        shown = OllamaShown.model_validate(answer.json(), strict=True)
        assert shown.model_info["quire.context_length"] == 2048
        assert shown.parameters == "temperature 0.6"
    version = (await gateway.http.get("/api/version")).json()["version"]
    assert [part.isdecimal() for part in version.split(".")] == [True] * 3
    assert tuple(map(int, version.split("."))) >= (0, 13, 4), "Codex asks for it"


async def test_embeddings(gateway):
    ask = {
        "model": "m:latest",
        "input": ["fox", "an owl"],
        "truncate": True,
        "keep_alive": 5,
        "dimensions": 2,
    }
    answer = await gateway.http.post("/api/embed", json=ask)
    found = OllamaEmbeddings.model_validate(answer.json())
    assert [one[0] for one in found.embeddings] == [3, 6]
    assert (found.model, found.prompt_eval_count) == ("m", 9)
    assert {one.dimensions for one in gateway.tokenizer.texts} == {2}
    assert {one.truncate_prompt_tokens for one in gateway.tokenizer.texts} == {-1}
    await gateway.http.post("/api/embed", json=ask | {"input": "fox", "truncate": False})
    assert gateway.tokenizer.texts[-1].truncate_prompt_tokens == 0


async def test_an_embedding_as_earlier_clients_ask_for_it(gateway):
    answer = await gateway.http.post("/api/embeddings", json={"model": "m:latest", "prompt": "fox"})
    assert OllamaEmbedding.model_validate(answer.json()).embedding[0] == 3
    assert gateway.tokenizer.texts[0].truncate_prompt_tokens == -1


@pytest.mark.parametrize("nothing", [{}, {"input": ""}, {"input": []}])
async def test_an_empty_list_of_texts_asks_whether_the_model_is_there(gateway, nothing):
    answer = await gateway.http.post("/api/embed", json={"model": "m", **nothing})
    found = OllamaEmbeddings.model_validate(answer.json(), strict=True)
    assert (found.model, found.embeddings, found.prompt_eval_count) == ("m", [], 0)
    assert gateway.tokenizer.texts == []


@pytest.mark.parametrize("nothing", [{}, {"prompt": ""}])
async def test_an_empty_text_asks_whether_the_model_is_there(gateway, nothing):
    answer = await gateway.http.post("/api/embeddings", json={"model": "m", **nothing})
    assert OllamaEmbedding.model_validate(answer.json(), strict=True).embedding == []
    assert (await gateway.http.post("/api/embeddings", json={"model": "n", **nothing})).status_code == 404


def turn(number):
    call = {"function": {"name": "look", "arguments": {}}}
    return [
        {"role": "user", "content": f"Look {number}"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "snow"},
        {"role": "assistant", "content": f"Snow {number}"},
    ]


def fitting(tell, most):
    """`tell` for conversations with at most `most` messages; others are longer than the context."""

    async def generate(request, context):
        if len(request.chat.messages) > most:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "too long", (("quire-param", "messages"),))
        async for chunk in tell(request, context):
            yield chunk

    return generate


SYSTEM = {"role": "system", "content": "Be brief."}
LATER = {"role": "system", "content": "Be kind."}
LAST = {"role": "user", "content": "A fox?"}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("most", "kept"),
    [
        (99, [SYSTEM, *turn(1), LATER, *turn(2), *turn(3), LAST]),
        (12, [SYSTEM, LATER, *turn(3), LAST]),
        (7, [SYSTEM, LATER, *turn(3), LAST]),
        (6, [SYSTEM, LATER, LAST]),
    ],
)
async def test_of_a_conversation_that_is_too_long_the_oldest_messages_are_left_out(
    gateway, most, kept, stream
):
    gateway.tokenizer.generate = fitting(gateway.tokenizer.generate, most)
    messages = [SYSTEM, *turn(1), LATER, *turn(2), *turn(3), LAST]
    lines, _ = await asked(gateway, "/api/chat", messages=messages, stream=stream)
    assert "".join(map(text_of, lines)) == STORY
    found = [(one.role, one.content) for one in gateway.tokenizer.requests[-1].chat.messages]
    assert found == [(one["role"], one["content"]) for one in kept]


async def test_what_comes_before_the_only_question_is_left_out(gateway):
    gateway.tokenizer.generate = fitting(gateway.tokenizer.generate, 1)
    await asked(gateway, "/api/chat", messages=[*turn(1)[1:], LAST])
    (kept,) = gateway.tokenizer.requests[-1].chat.messages
    assert kept.content == LAST["content"]


@pytest.mark.parametrize(
    ("most", "fields", "calls"),
    [(12, {"truncate": False}, 1), (0, {}, 3), (0, {"messages": turn(1)[1:]}, 1)],
)
async def test_what_is_too_long_all_the_same_is_refused(gateway, most, fields, calls):
    gateway.tokenizer.generate = fitting(gateway.tokenizer.generate, most)
    ask = {"model": "m", "messages": [SYSTEM, *turn(1), *turn(2), *turn(3), LAST]} | fields
    assert error_of(await gateway.http.post("/api/chat", json=ask)) == 400
    assert len(gateway.tokenizer.requests) == calls


async def test_an_answer_that_has_begun_keeps_its_conversation(gateway):
    async def smaller(request, context):
        yield TextChunk(prompt=PromptInfo(tokens=1), deltas=[TextDelta(text="A", token_ids=[1])])
        if request.resumed:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "the context is smaller now")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "killed", (("quire-lost", "tokenizer-1"),))

    gateway.tokenizer.generate = smaller
    ask = {"model": "m", "messages": [*turn(1), LAST], "stream": False}
    assert error_of(await gateway.http.post("/api/chat", json=ask)) == 400
    assert [len(request.chat.messages) for request in gateway.tokenizer.requests] == [5, 5]


@pytest.mark.parametrize("path", KINDS)
async def test_log_probabilities(gateway, path):
    asked_for = {"logprobs": True, "top_logprobs": 2, "options": {"num_predict": 3}}
    (whole,), _ = await asked(gateway, path, stream=False, **asked_for)
    lines, _ = await asked(gateway, path, **asked_for)
    assert whole["logprobs"] == [one for line in lines for one in line.get("logprobs", [])]
    assert "".join(one["token"] for one in whole["logprobs"]) == text_of(whole)
    assert [len(one["top_logprobs"]) for one in whole["logprobs"]] == [2] * 3
    (plain,), _ = await asked(gateway, path, stream=False, top_logprobs=2)
    assert "logprobs" not in plain


async def test_a_name_with_a_tag(gateway):
    lines, _ = await asked(gateway, "/api/chat", model="m:latest", stream=False)
    assert lines[0]["model"] == "m"


def error_of(answer):
    assert OllamaError.model_validate(answer.json(), strict=True).error
    return answer.status_code


@pytest.mark.parametrize("path", [*KINDS, "/api/show"])
@pytest.mark.parametrize(
    ("ask", "status"),
    [
        ({"content": b"{"}, 400),
        ({"json": {"model": 5, "prompt": "A", "messages": MESSAGES}}, 400),
        ({"json": {"model": "n", "prompt": "A", "messages": MESSAGES}}, 404),
        ({"json": {"model": "n:7b", "prompt": "A", "messages": MESSAGES}}, 404),
        ({"content": b"{}", "headers": {"Content-Type": "text/plain", "Sec-Fetch-Site": "none"}}, 415),
    ],
)
async def test_errors_have_ollamas_shape(refusing, path, ask, status):
    assert error_of(await refusing.post(path, **ask)) == status


async def test_what_does_not_exist_here(refusing):
    assert error_of(await refusing.post("/api/pull", json={"model": "m"})) == 404


async def test_keys_are_needed_here_too(gateway, keys_of):
    transport = httpx.ASGITransport(app_of(gateway.backend, keys_of({"sk-a": "a"})))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for path in ("/api/tags", "/api/version", "/api/ps"):
            assert error_of(await http.get(path)) == 401
            assert (await http.get(path, headers={"Authorization": "Bearer sk-a"})).status_code == 200


async def test_an_error_in_a_stream_is_its_last_line(gateway):
    async def fail(request, context):
        yield TextChunk(prompt=PromptInfo(tokens=1), deltas=[TextDelta(text="A", token_ids=[1])])
        await context.abort(grpc.StatusCode.ABORTED, "enough")

    gateway.tokenizer.generate = fail
    answer = await gateway.http.post("/api/chat", json={"model": "m", "messages": MESSAGES})
    first, last = map(json.loads, answer.text.splitlines())
    assert text_of(first) == "A"
    assert last.keys() == {"error"}
