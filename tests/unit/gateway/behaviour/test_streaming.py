"""What goes over the connection, byte for byte, and what happens when the client does not play along."""

import asyncio
import json
import re

import grpc
import openai
import pytest

from proto.rpc.call import too_large
from proto.sampling_pb2 import LENGTH, STOP
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


def say(*chunks: TextChunk, then=None):
    async def generate(request, context):
        for chunk in chunks:
            yield chunk
        if then is not None:
            await then(context)

    return generate


def text(text: str, token: int, index: int = 0, **fields) -> TextChunk:
    return TextChunk(deltas=[TextDelta(index=index, text=text, token_ids=[token], **fields)])


def failing(code: grpc.StatusCode, details: str, param: str = ""):
    async def then(context):
        await context.abort(code, details, (("quire-param", param),) if param else ())

    return then


async def forever(context):
    await asyncio.Event().wait()


def scrubbed(raw: bytes) -> str:
    """Without what differs from one request to the next."""
    found = re.sub(r"(cmpl-)[0-9a-f]{32}", r"\1ID", raw.decode())
    return re.sub(r'"created":\d+', '"created":0', found)


async def test_chat_events_byte_for_byte(gateway):
    gateway.tokenizer.generate = say(
        TextChunk(prompt=PromptInfo(tokens=2)),
        text('a "b"\n', 3),
        text("", 4),
        text("\u2028é\U0001f98a", 5),
        text("", 6, finish_reason=STOP),
    )
    ask = {"model": "m", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    response = await gateway.http.post(CHAT, json=ask)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])
    head = 'data: {"id":"chatcmpl-ID","object":"chat.completion.chunk","created":0,"model":"m","choices":['
    rest = ',"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
    assert scrubbed(response.content) == (
        head + '{"index":0,"delta":{"role":"assistant","content":""}' + rest +
        head + '{"index":0,"delta":{"content":"a \\"b\\"\\n"}' + rest +
        head + '{"index":0,"delta":{"content":"\\u2028\\u00e9\\ud83e\\udd8a"}' + rest +
        head + '{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null}' +
        '],"usage":null}\n\n' +
        head + '],"usage":{"prompt_tokens":2,"completion_tokens":4,"total_tokens":6,'
        '"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
        "data: [DONE]\n\n"
    )  # fmt: skip


async def test_counts_in_every_event(gateway):
    gateway.tokenizer.generate = say(
        TextChunk(prompt=PromptInfo(tokens=2)),
        text('],"usage":null}', 3),
        text("b", 4, finish_reason=STOP),
    )
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await gateway.events(CHAT, model="m", messages=MESSAGES, stream=True, stream_options=options)
    usages = [json.loads(event)["usage"] for event in events[:-1]]
    assert [usage["completion_tokens"] for usage in usages] == [1, 1, 2, 2, 2]
    assert {usage["prompt_tokens"] for usage in usages} == {2}
    assert json.loads(events[1])["choices"][0]["delta"]["content"] == '],"usage":null}'


async def test_completion_events_byte_for_byte(gateway):
    gateway.tokenizer.generate = say(text("a", 3), text("", 4), text("b", 5, finish_reason=LENGTH))
    response = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A", "stream": True})
    head = 'data: {"id":"cmpl-ID","object":"text_completion","created":0,"model":"m","choices":[{"index":0,'
    assert scrubbed(response.content) == (
        head + '"text":"a","logprobs":null,"finish_reason":null}]}\n\n' +
        head + '"text":"b","logprobs":null,"finish_reason":"length","stop_reason":null}]}\n\n'
        "data: [DONE]\n\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ({"finish_reason": STOP}, None),
        ({"finish_reason": STOP, "stop_string": "\n\u2028"}, "\n\u2028"),
        ({"finish_reason": LENGTH}, None),
    ],
)
@pytest.mark.parametrize(("path", "prompt"), [(CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "A"})])
async def test_what_has_ended_an_answer(gateway, path, prompt, end, reason):
    """A stop string, or else a token of `stop_token_ids`, also if only the end comes after a process died."""
    ask = {"model": "m", "stop": "x", **prompt}
    for token, ends in ((4, [9]), (9, [9]), (9, [])):
        gateway.tokenizer.generate = say(text("a", token), TextChunk(deltas=[TextDelta(**end)]))
        expected = token if reason is None and token in ends and end["finish_reason"] == STOP else reason
        whole = (await gateway.http.post(path, json=ask | {"stop_token_ids": ends})).json()["choices"][0]
        *_, last, _ = await gateway.events(path, **ask, stop_token_ids=ends)
        assert (whole["stop_reason"], json.loads(last)["choices"][0]["stop_reason"]) == (expected, expected)


async def test_every_event_is_the_object_it_claims_to_be(gateway):
    for path, prompt in ((CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "A"})):
        wanted = {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
        for extra in ({}, wanted, {"return_token_ids": True}, {**wanted, "n": 3}):
            *events, done = await gateway.events(path, max_tokens=3, **prompt, **extra)
            assert done == "[DONE]"
            for event in events:
                kind = openai.types.chat.ChatCompletionChunk if path == CHAT else openai.types.Completion
                fields = json.loads(event)
                if path == COMPLETIONS:
                    # The client's type of a finished choice also serves for unfinished ones.
                    for choice in fields["choices"]:
                        choice["finish_reason"] = choice["finish_reason"] or "stop"
                kind.model_validate(fields)


async def test_each_chunk_is_sent_at_once(gateway):
    received = asyncio.Event()

    async def generate(request, context):
        yield text("a", 1)
        await received.wait()
        yield text("b", 2, finish_reason=STOP)

    gateway.tokenizer.generate = generate
    seen = ""
    ask = {"model": "m", "prompt": "A", "stream": True}
    async with gateway.http.stream("POST", COMPLETIONS, json=ask) as response:
        async for piece in response.aiter_text():
            seen += piece
            if '"text":"a"' in seen:
                received.set()
    assert '"text":"b"' in seen


STATUSES = [
    (grpc.StatusCode.INVALID_ARGUMENT, 400, openai.BadRequestError),
    (grpc.StatusCode.NOT_FOUND, 404, openai.NotFoundError),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, 429, openai.RateLimitError),
    (grpc.StatusCode.ABORTED, 500, openai.InternalServerError),
]

UNEXPECTED = [
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.UNIMPLEMENTED,
]
SECRET = "Unexpected <class 'KeyError'>: '/srv/models/secret'"


@pytest.mark.parametrize(("code", "status", "kind"), STATUSES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_fails_at_once(gateway, code, status, kind, stream):
    gateway.tokenizer.generate = say(then=failing(code, "no good", "prompt"))
    with pytest.raises(kind) as caught:
        await gateway.openai().completions.create(model="m", prompt="A", stream=stream)
    assert (caught.value.status_code, caught.value.param) == (status, "prompt")
    assert caught.value.body["message"] == "no good"
    assert ("retry-after" in caught.value.response.headers) == (status == 429)


async def test_a_request_that_ends_processes_is_not_tried_again(gateway):
    gateway.tokenizer.generate = say(then=failing(grpc.StatusCode.ABORTED, "it ends workers"))
    with pytest.raises(openai.InternalServerError, match="it ends workers") as caught:
        await gateway.openai().with_options(max_retries=2).completions.create(model="m", prompt="A")
    assert caught.value.code == "request_poisoned"
    assert len(gateway.tokenizer.requests) == 1


@pytest.mark.parametrize("code", UNEXPECTED)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_what_failed_is_in_the_log_and_an_id_in_the_answer(gateway, caplog, code, stream, begun):
    first = (text("a", 1),) if begun else ()
    gateway.tokenizer.generate = say(*first, then=failing(code, SECRET, "prompt"))
    ask = {"model": "m", "prompt": "A", "stream": stream}
    response = await gateway.http.post(COMPLETIONS, json=ask)
    assert response.status_code == (200 if stream and begun else 500)
    error = json.loads(response.text.split("data: ")[-1])["error"]
    request_id = response.headers["x-request-id"]
    assert (error["type"], error["param"], error["code"]) == ("server_error", None, "internal_error")
    assert request_id in error["message"]
    assert "/srv" not in response.text
    (logged,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert request_id in logged
    assert SECRET in logged


@pytest.mark.parametrize("begun", [False, True])
async def test_a_fault_of_ours_within_a_stream_has_an_id_too(gateway, caplog, begun):
    bad = text("there is no sequence 7", 1, index=7)
    gateway.tokenizer.generate = say(*((text("a", 1), bad) if begun else (bad,)))
    response = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A", "stream": True})
    assert response.status_code == (200 if begun else 500)
    error = json.loads(response.text.split("data: ")[-1])["error"]
    assert response.headers["x-request-id"] in error["message"]
    assert "IndexError" in caplog.text
    assert response.headers["x-request-id"] in caplog.text


async def test_processes_that_are_not_there(gateway, caplog):
    failure = failing(grpc.StatusCode.UNAVAILABLE, "no process serves calls:Tokenizer:m")
    gateway.tokenizer.generate = say(then=failure)
    response = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A"})
    assert response.status_code == 503
    assert "calls:" not in response.text
    assert "calls:Tokenizer:m" in caplog.text


async def test_a_message_that_is_too_large_to_pass_on(gateway):
    async def generate(request, context):
        status = too_large(5 * 2**20)
        await context.abort(status.code, status.details, status.trailing)
        yield TextChunk()

    gateway.tokenizer.generate = generate
    response = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A"})
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    assert "retry-after" not in response.headers


async def test_an_answer_that_takes_too_long(gateway):
    gateway.tokenizer.generate = say(then=failing(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ""))
    client = gateway.openai().with_options(max_retries=2)
    with pytest.raises(openai.InternalServerError) as caught:
        await client.completions.create(model="m", prompt="A", extra_body={"timeout": 9})
    assert len(gateway.tokenizer.requests) == 1, "it would take as long again"
    assert (caught.value.status_code, caught.value.param) == (504, "timeout")
    assert "not complete within 'timeout'" in caught.value.message


async def test_what_the_context_has_no_room_for_is_refused_by_its_name(gateway):
    failure = failing(grpc.StatusCode.OUT_OF_RANGE, "maximum context length", "prompt")
    gateway.tokenizer.generate = say(then=failure)
    with pytest.raises(openai.BadRequestError) as caught:
        await gateway.openai().chat.completions.create(model="m", messages=MESSAGES)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


async def test_a_prompt_that_is_a_conversation_is_named_so(gateway):
    failure = failing(grpc.StatusCode.INVALID_ARGUMENT, "too long", "prompt")
    gateway.tokenizer.generate = say(then=failure)
    with pytest.raises(openai.BadRequestError) as caught:
        await gateway.openai().chat.completions.create(model="m", messages=MESSAGES)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_failure_within_the_stream(gateway, path):
    gateway.tokenizer.generate = say(text("a", 1), then=failing(grpc.StatusCode.INTERNAL, "broken"))
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "A"}
    events = await gateway.events(path, **prompt)
    assert json.loads(events[-1])["error"]["message"].startswith("The server failed")
    client = gateway.openai()
    create = client.chat.completions.create if path == CHAT else client.completions.create
    with pytest.raises(openai.APIError, match="The server failed"):
        async for _ in await create(model="m", stream=True, **prompt):
            pass


async def test_a_call_that_ends_before_its_answer_is_complete(gateway):
    gateway.tokenizer.generate = say(text("a", 1))
    response = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A"})
    assert response.status_code == 500


async def test_one_failing_prompt_ends_the_request_and_cancels_the_others(gateway):
    async def generate(request, context):
        if request.text == "bad":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too long", (("quire-param", "prompt"),))
        await forever(context)
        yield TextChunk()

    gateway.tokenizer.generate = generate
    response = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": ["good", "bad"]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
    await asyncio.wait_for(gateway.tokenizer.cancelled.wait(), 60)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["A", ["A", "B"]])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_cancels_its_calls(gateway, caplog, stream, prompt, begun):
    asked = asyncio.Event()

    async def generate(request, context):
        if begun:
            yield text("a", 1)
        asked.set()
        await forever(context)

    gateway.tokenizer.generate = generate
    ask = {"model": "m", "prompt": prompt, "stream": stream}
    request = asyncio.ensure_future(gateway.http.post(COMPLETIONS, json=ask))
    await asyncio.wait_for(asked.wait(), 60)
    request.cancel()
    await asyncio.wait_for(gateway.tokenizer.cancelled.wait(), 60)
    assert (await gateway.http.get("/health/live")).status_code == 200
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


async def test_a_client_that_does_not_read_holds_up_only_itself(gateway):
    produced = 0

    async def generate(request, context):
        nonlocal produced
        if request.text == "B":
            yield text("b", 1, finish_reason=STOP)
            return
        while True:
            yield text("x" * 10_000, 1)
            produced += 1

    gateway.tokenizer.generate = generate
    _, writer = await asyncio.open_connection(*gateway.address, limit=1024)
    body = json.dumps({"model": "m", "prompt": "A", "stream": True}).encode()
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    before = -1
    while produced != before or produced == 0:
        before = produced
        for _ in range(20):
            response = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "B"})
            assert response.json()["choices"][0]["text"] == "b"
    assert produced * 10_000 < 50e6
    writer.close()
    await asyncio.wait_for(gateway.tokenizer.cancelled.wait(), 60)
