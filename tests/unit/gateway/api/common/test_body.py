"""How bodies are read: of which type, how much of what, and where."""

import asyncio
import gc
import json
import threading
import tracemalloc

import httpx
import pytest
from pydantic import ValidationError

from gateway.api.batches.schema import BatchBody
from gateway.api.common import body as bodies
from gateway.api.common.body import MAX_FIELDS, parse
from gateway.api.common.fields import MAX_ARGUMENT_DEPTH, MAX_ARGUMENTS, MAX_MESSAGES
from gateway.api.common.ignored import Ignored
from gateway.api.kserve.schema import InferBody
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.completions_schema import CompletionBody
from gateway.api.openai.token_schema import DetokenizeBody
from gateway.api.openai.translate import chat_requests
from gateway.api.pooling.embeddings_schema import EmbeddingBody
from gateway.api.responses.schema import ResponsesBody
from gateway.errors import BadRequest
from gateway.http.caller import Caller
from gateway.parsing import PARSED_AT_ONCE
from proto.rpc import Lease
from tests.unit.gateway.conftest import JSON, app_of, leases_of, serving
from tests.unit.gateway.http.test_counts import EMPTY_MESSAGES

MESSAGES = [{"role": "user", "content": "Hi"}]
SMALL = json.dumps({"model": "m", "prompt": "A"}).encode()


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "text/plain; charset=utf-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=a",
        "text/json",
        "application/jsonp",
        "text/plain; application/json",
        "nonsense",
    ],
)
async def test_what_is_not_json(refusing, kind):
    answer = await refusing.post("/v1/completions", content=SMALL, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


async def test_a_body_without_a_type(refusing):
    """As a page's script can send it to any server, without asking the server first."""
    del refusing.headers["content-type"]
    assert (await refusing.post("/v1/completions", content=SMALL)).status_code == 415


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
@pytest.mark.parametrize(
    ("browser", "status"),
    [({}, 400), ({"origin": "http://localhost"}, 415), ({"sec-fetch-site": "same-origin"}, 415)],
)
async def test_ollamas_api_asks_browsers_alone_for_a_type(refusing, kind, browser, status):
    """`curl -d` names the first one."""
    del refusing.headers["content-type"]
    headers = browser if kind is None else browser | {"content-type": kind}
    for path in ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"):
        answer = await refusing.post(path, content=b"{", headers=headers)
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"]
)
async def test_what_is_json(refusing, kind):
    answer = await refusing.post("/v1/completions", content=b"{", headers={"content-type": kind})
    assert answer.json()["error"]["code"] == "invalid_json"


OF_A_MODEL = [
    ("/v1/completions", {"prompt": "A"}),
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/responses", {"input": "A"}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 2}),
    ("/v1/embeddings", {"input": "A"}),
    ("/v1/rerank", {"query": "A", "documents": ["B"]}),
    ("/api/generate", {"prompt": "A", "stream": False}),
]


@pytest.mark.parametrize(("path", "fields"), OF_A_MODEL)
@pytest.mark.parametrize("model", [{}, {"model": ""}, {"model": None}])
async def test_the_only_model_need_not_be_named(gateway, path, fields, model):
    answer = await gateway.http.post(path, json=fields | model)
    assert (answer.status_code, answer.json()["model"]) == (200, "m")


@pytest.mark.parametrize(("path", "fields"), OF_A_MODEL)
async def test_of_several_models_one_is_named(gateway, path, fields):
    gateway.backend.lease_list = [*leases_of("m"), Lease("tokenizer-2", "tokenizer", 1, {"model": "n"})]
    answer = await gateway.http.post(path, json=fields)
    assert answer.status_code == 400
    assert "Missing required parameter: 'model'." in answer.text


async def test_what_is_about_no_model_needs_none(gateway):
    """Their paths, or fields of other names, name the model."""
    gateway.backend.lease_list = [*leases_of("m"), Lease("tokenizer-2", "tokenizer", 1, {"model": "n"})]
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["A"]}
    for path, fields in (("/v2/models/m/infer", {"inputs": [tensor]}), ("/api/show", {"name": "m"})):
        assert (await gateway.http.post(path, json=fields)).status_code == 200


def test_no_object_is_made_of_a_body_with_too_many(monkeypatch):
    monkeypatch.setattr(bodies, "value_of", None)
    with pytest.raises(BadRequest, match="objects and lists"):
        parse(EMPTY_MESSAGES, ChatBody)


def test_half_a_character():
    """As a script leaves of one where it cuts a text."""
    raw = rb'{"model": "m", "messages": [{"role": "user", "content": "a\ud83d b"}]}'
    assert parse(raw, ChatBody).messages[0].content == "a\ufffd b"


def refusal_of(**fields) -> BadRequest:
    with pytest.raises(BadRequest) as refused:
        parse(json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode(), ChatBody)
    return refused.value


def test_too_many_messages():
    assert refusal_of(messages=MESSAGES * (MAX_MESSAGES + 1)).param == "messages"
    parse(json.dumps({"model": "m", "messages": MESSAGES * MAX_MESSAGES}).encode(), ChatBody)


RESPONSE = {"model": "m", "input": "A"}
BATCH = {"input_file_id": "f", "endpoint": "/v1/embeddings", "completion_window": "24h"}
INFER = {"inputs": [{"name": "A", "shape": [1], "datatype": "BYTES", "data": ["A"]}]}


@pytest.mark.parametrize(
    ("kind", "asked", "field", "parts", "most"),
    [
        (ResponsesBody, RESPONSE, "input", [{"type": "unknown"}] * (MAX_MESSAGES + 1), MAX_MESSAGES),
        (ResponsesBody, RESPONSE, "metadata", {str(n): n for n in range(17)}, 16),
        (BatchBody, BATCH, "metadata", {str(n): n for n in range(17)}, 16),
        (InferBody, INFER, "parameters", {str(n): [] for n in range(65)}, 64),
    ],
)
def test_parts_are_counted_before_they_are_validated(kind, asked, field, parts, most):
    parse(json.dumps(asked).encode(), kind)
    with pytest.raises(BadRequest, match=f"at most {most} items, not {len(parts)}") as refused:
        parse(json.dumps(asked | {field: parts}).encode(), kind)
    assert refused.value.param == field


def test_the_first_wrong_token_ends_the_validation():
    with pytest.raises(ValidationError) as refused:
        DetokenizeBody.model_validate({"tokens": [1, -1, "a", -1]})
    assert [error["loc"] for error in refused.value.errors()] == [("tokens", 1)]


def test_too_many_fields():
    assert "more than" in refusal_of(**{f"x{i}": 1 for i in range(MAX_FIELDS)}).message
    many = {"role": "user", "content": "", **{f"x{i}": 1 for i in range(50)}}
    assert refusal_of(messages=[many]).param == "messages[0]"


@pytest.mark.parametrize("stop", ["a" * 257, ["b", "a" * 257]])
def test_a_stop_string_that_is_too_long(stop):
    assert str(refusal_of(stop=stop).param).startswith("stop[")


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody, EmbeddingBody])
def test_whole_numbers_may_have_a_fraction_of_zero(kind):
    fields = {"model": "m", "messages": MESSAGES, "prompt": "A", "input": "A", "priority": 3.0}
    body = parse(json.dumps(fields | {"max_tokens": 5.0, "temperature": 1}).encode(), kind, Ignored())
    assert repr(body.priority) == "3"
    if kind is not EmbeddingBody:
        assert (repr(body.max_tokens), repr(body.temperature)) == ("5", "1.0")


def test_whole_numbers_of_an_embedding_may_have_a_fraction_of_zero():
    fields = {"model": "m", "input": "A", "dimensions": 4.0, "truncate_prompt_tokens": -1.0}
    body = parse(json.dumps(fields).encode(), EmbeddingBody)
    assert repr((body.dimensions, body.truncate_prompt_tokens)) == "(4, -1)"


def nested(depth: int) -> object:
    value: object = 1
    for i in range(depth):
        value = [value] if i % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": nested(MAX_ARGUMENT_DEPTH)},
        {"a": nested(150)},
        {"a": [1] * MAX_ARGUMENTS},
        {f"a{i}": 1 for i in range(MAX_ARGUMENTS + 1)},
    ],
)
def test_template_arguments_that_are_too_large(arguments):
    assert refusal_of(chat_template_kwargs=arguments).param == "chat_template_kwargs"


def test_template_arguments_do_not_grow_on_the_way():
    arguments = {"a": nested(MAX_ARGUMENT_DEPTH - 2), "b": ["é" * 10, 1, 2]}
    raw = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    body = parse(
        f'{{"model":"m","messages":[{{"role":"u","content":"A"}}],"chat_template_kwargs":{raw}}}'.encode(),
        ChatBody,
    )
    (request,) = chat_requests(body, "id", Caller())
    assert request.chat.template_arguments == raw


async def test_a_large_body_is_parsed_beside_the_event_loop(gateway, monkeypatch):
    began, may_end = asyncio.Event(), threading.Event()
    loop, threads = asyncio.get_running_loop(), []

    def slowly(raw, kind, ignored):
        threads.append(threading.current_thread().name)
        if len(raw) > PARSED_AT_ONCE:
            loop.call_soon_threadsafe(began.set)
            assert may_end.wait(20)
        return parse(raw, kind, ignored)

    monkeypatch.setattr(bodies, "parse", slowly)
    large = {"model": "m", "prompt": "A" * PARSED_AT_ONCE}
    answers = [asyncio.ensure_future(gateway.http.post("/v1/completions", json=large)) for _ in range(3)]
    try:
        await asyncio.wait_for(began.wait(), 60)
        assert (await gateway.http.post("/v1/completions", content=SMALL)).status_code == 200
        assert len(threads) == 2, "one large body at a time"
    finally:
        may_end.set()
    assert [(await answer).status_code for answer in answers] == [200] * 3
    assert {name.split("_")[0] for name in threads} == {"parse", "MainThread"}


LONG = "A" * PARSED_AT_ONCE


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/responses", {"input": LONG}),
        ("/api/chat", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/fim/completions", {"prompt": LONG}),
        ("/infill", {"input_prefix": LONG, "input_suffix": ""}),
    ],
)
async def test_a_large_body_of_another_api_becomes_one_of_the_chat_api_beside_the_event_loop(
    gateway, monkeypatch, path, fields
):
    threads, validate = [], ChatBody.model_validate.__func__

    def noted(kind, *given, **named):
        threads.append(threading.current_thread().name.split("_")[0])
        return validate(kind, *given, **named)

    monkeypatch.setattr(ChatBody, "model_validate", classmethod(noted))
    await gateway.http.post(path, json={"model": "m"} | fields)
    assert threads == ["parse"]


def test_a_small_body_is_what_it_was():
    assert parse(SMALL, CompletionBody).prompt == ["A"]


@pytest.mark.parametrize("body", [b'{"messages": [], "user": "%s"}', b'{"messages": "%s'])
async def test_nothing_is_left_of_a_body_that_was_refused(backend, body) -> None:
    """Not even until the garbage is collected: bodies of some seconds may have gigabytes."""
    raw = body % (b"x" * 2**20)
    async with serving(app_of(backend)) as server, httpx.AsyncClient() as client:

        async def refused() -> None:
            url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
            assert (await client.post(url, content=raw, headers=JSON)).status_code == 400

        await refused()
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(10):
                await refused()
            assert tracemalloc.get_traced_memory()[0] < 5 * len(raw)
        finally:
            tracemalloc.stop()
            gc.enable()
