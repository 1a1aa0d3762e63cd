"""Whatever a client sends, it gets an error of its own that names what is wrong."""

import asyncio
import gzip
import json

import pytest
from starlette.requests import Request

from gateway.api.body import MAX_BODY_BYTES, read_body
from gateway.api.schema import CompletionBody
from gateway.errors import TooLarge
from proto.tokenizer_pb2 import TextChunk, TextDelta

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
HUGE = 10**30

# Fields added to a good completion request: the status is 400; then param and code.
BAD_COMPLETIONS = [
    ({"prompt": ""}, "prompt", "invalid_value"),
    ({"prompt": []}, "prompt", "invalid_value"),
    ({"prompt": None}, "prompt", "missing_required_parameter"),
    ({"prompt": 5}, "prompt", "invalid_type"),
    ({"prompt": {"text": "A"}}, "prompt", "invalid_type"),
    ({"prompt": ["A", ""]}, "prompt[1]", "invalid_value"),
    ({"prompt": ["A", 1]}, "prompt[1]", "invalid_type"),
    ({"prompt": [1, "A"]}, "prompt[1]", "invalid_type"),
    ({"prompt": [1, True]}, "prompt[1]", "invalid_type"),
    ({"prompt": [1, 2.5]}, "prompt[1]", "invalid_type"),
    ({"prompt": [1, -1]}, "prompt[1]", "invalid_value"),
    ({"prompt": [1, HUGE]}, "prompt[1]", "invalid_value"),
    ({"prompt": [[1], []]}, "prompt[1]", "invalid_value"),
    ({"prompt": [[1], ["A"]]}, "prompt[1][0]", "invalid_type"),
    ({"prompt": [[1], "A"]}, "prompt[1]", "invalid_type"),
    ({"prompt": [None]}, "prompt[0]", "invalid_type"),
    ({"prompt": ["A"] * 129}, "prompt", "invalid_value"),
    ({"prompt": ["A"] * 20, "n": 20}, "n", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_tokens": HUGE}, "max_tokens", "invalid_value"),
    ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
    ({"max_tokens": "5"}, "max_tokens", "invalid_type"),
    ({"max_tokens": True}, "max_tokens", "invalid_type"),
    ({"max_tokens": [5]}, "max_tokens", "invalid_type"),
    ({"rolling_context": 1}, "rolling_context", "invalid_type"),
    ({"rolling_context": True}, "max_tokens", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": HUGE}, "n", "invalid_value"),
    ({"temperature": -0.1}, "temperature", "invalid_value"),
    ({"temperature": 2.1}, "temperature", "invalid_value"),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"top_p": -0.01}, "top_p", "invalid_value"),
    ({"top_p": 1.01}, "top_p", "invalid_value"),
    ({"top_k": -2}, "top_k", "invalid_value"),
    ({"top_k": HUGE}, "top_k", "invalid_value"),
    ({"min_p": -1}, "min_p", "invalid_value"),
    ({"presence_penalty": 2.5}, "presence_penalty", "invalid_value"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "invalid_value"),
    ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
    ({"seed": 2**64}, "seed", "invalid_value"),
    ({"seed": -(2**63) - 1}, "seed", "invalid_value"),
    ({"seed": 1.0}, "seed", "invalid_type"),
    ({"stop": ""}, "stop[0]", "invalid_value"),
    ({"stop": 3}, "stop", "invalid_type"),
    ({"stop": ["a", 3]}, "stop[1]", "invalid_type"),
    ({"stop": ["a"] * 17}, "stop", "invalid_value"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
    ({"stop_token_ids": 5}, "stop_token_ids", "invalid_type"),
    ({"logprobs": 21}, "logprobs", "invalid_value"),
    ({"logprobs": True}, "logprobs", "invalid_type"),
    ({"stream": "yes"}, "stream", "invalid_type"),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "unknown_parameter"),
    ({"stream": True, "stream_options": []}, "stream_options", "invalid_type"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"model": ""}, "model", "invalid_value"),
    ({"model": 5}, "model", "invalid_type"),
    ({"model": None}, "model", "missing_required_parameter"),
    ({"echo": True}, "echo", "unsupported_parameter"),
    ({"suffix": "end"}, "suffix", "unsupported_parameter"),
    ({"best_of": 1, "n": 2}, "best_of", "invalid_value"),
    ({"best_of": 2, "stream": True}, "best_of", "invalid_value"),
    ({"best_of": 129}, "best_of", "invalid_value"),
    ({"prompt": ["a", "b"], "best_of": 65}, "best_of", "invalid_value"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
    ({"temprature": 1}, "temprature", "unknown_parameter"),
    ({"messages": MESSAGES}, "messages", "unknown_parameter"),
    ({"x" * 10_000: 1}, "x" * 100, "unknown_parameter"),
]
BAD_CHATS = [
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": None}, "messages", "missing_required_parameter"),
    ({"messages": "Hi"}, "messages", "invalid_type"),
    ({"messages": ["Hi"]}, "messages[0]", "invalid_type"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role", "missing_required_parameter"),
    ({"messages": [{"role": 1, "content": "Hi"}]}, "messages[0].role", "invalid_type"),
    ({"messages": [{"role": "", "content": "Hi"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content", "invalid_type"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content",
        "invalid_value",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content", "invalid_type"),
    ({"messages": [{"role": "user", "content": [{"type": []}]}]}, "messages[0].content", "invalid_type"),
    ({"messages": [{"role": "user", "content": "", "colour": 1}]}, "messages[0].colour", "unknown_parameter"),
    (
        {"messages": [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [{}]}]},
        "messages[1].tool_calls",
        "unsupported_parameter",
    ),
    ({"messages": [{"role": "user", "content": "", "name": 1}]}, "messages[0].name", "invalid_type"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, "max_tokens", "invalid_value"),
    ({"logprobs": 1}, "logprobs", "invalid_type"),
    ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
    ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
    ({"functions": [{}]}, "functions", "unsupported_parameter"),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
    ({"audio": {"voice": "a"}}, "audio", "unsupported_parameter"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter"),
    ({"prompt": "A"}, "prompt", "unknown_parameter"),
]
BAD_BODIES = [
    b"",
    b"not json",
    b"[]",
    b'"text"',
    b"null",
    b'{"model": "m", "prompt": "A"',
    b'{"model": "m", "prompt": "A"} {}',
    b'{"model": "m", "prompt": "\xff\xfe"}',
    b'{"model": "m", "prompt": "\\ud800"}',
    b'{"model": "m", "prompt": "A", "temperature": NaN}',
    b'{"model": "m", "prompt": "A", "seed": ' + b"9" * 5000 + b"}",
    b"[" * 100_000,
]


def assert_error(response, status, param, code):
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, code), error
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]


@pytest.mark.parametrize(("fields", "param", "code"), BAD_COMPLETIONS)
async def test_bad_completion(refusing, fields, param, code):
    response = await refusing.post(COMPLETIONS, json={"model": "m", "prompt": "A"} | fields)
    assert_error(response, 400, param, code)
    assert len(response.content) < 1000


@pytest.mark.parametrize(("fields", "param", "code"), BAD_CHATS)
async def test_bad_chat(refusing, fields, param, code):
    response = await refusing.post(CHAT, json={"model": "m", "messages": MESSAGES} | fields)
    assert_error(response, 400, param, code)


@pytest.mark.parametrize("body", BAD_BODIES)
async def test_bad_body(refusing, body):
    assert_error(await refusing.post(COMPLETIONS, content=body), 400, None, "invalid_json")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (["Hi"], "'messages[0]': input should be an object."),
        ([], "'messages': list should have at least 1 item, not 0."),
        (
            [*MESSAGES, {"role": "tool", "content": "", "tool_call_id": "a"}],
            "'messages[1].tool_call_id' is not",
        ),
    ],
)
async def test_errors_are_about_json_and_not_about_python(refusing, messages, said):
    response = await refusing.post(CHAT, json={"model": "m", "messages": messages})
    assert response.json()["error"]["message"].startswith(said)


async def test_a_compressed_body(refusing):
    body = gzip.compress(b'{"model": "m", "prompt": "A"}')
    response = await refusing.post(COMPLETIONS, content=body, headers={"Content-Encoding": "gzip"})
    assert_error(response, 415, None, "unsupported_content_encoding")
    assert response.headers["accept-encoding"] == "identity"


async def test_an_infinite_number(refusing):
    response = await refusing.post(COMPLETIONS, content=b'{"model":"m","prompt":"A","temperature":1e999}')
    assert_error(response, 400, "temperature", "invalid_value")


async def test_what_asks_for_nothing_is_accepted(gateway):
    nothing = {
        "tools": [],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "logit_bias": {},
        "modalities": ["text"],
        "audio": None,
        "store": False,
        "user": "u",
        "metadata": {"a": "b"},
        "temperature": None,
        "stop": None,
        "stream": None,
    }
    response = await gateway.http.post(CHAT, json={"model": "m", "messages": MESSAGES} | nothing)
    assert response.status_code == 200


async def test_unknown_places_and_models(refusing):
    http = refusing
    assert_error(await http.get("/v1/nothing"), 404, None, "unknown_url")
    assert_error(await http.get("/docs"), 404, None, "unknown_url")
    assert_error(await http.get(CHAT), 405, None, "method_not_allowed")
    assert_error(await http.delete("/v1/models"), 405, None, "method_not_allowed")
    assert_error(await http.get("/v1/models/nobody"), 404, "model", "model_not_found")
    response = await http.post(COMPLETIONS, json={"model": "nobody", "prompt": "A", "stream": True})
    assert_error(response, 404, "model", "model_not_found")
    assert response.headers["content-type"] == "application/json"


async def test_a_huge_body_with_its_length_is_refused_before_it_is_sent(gateway):
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: q\r\nContent-Length: 52428800\r\n\r\n{")
    status = await asyncio.wait_for(reader.readline(), 5)
    assert status.split()[1] == b"413"
    writer.close()


async def test_a_huge_body_is_refused_and_the_next_request_served(gateway):
    async def body():
        for _ in range(50):
            yield b" " * 2**20

    assert_error(await gateway.http.post(COMPLETIONS, content=body()), 413, None, "request_too_large")
    response = await gateway.http.post(COMPLETIONS, content=b" " * (50 * 2**20))
    assert_error(response, 413, None, "request_too_large")
    response = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A"})
    assert response.status_code == 200


async def test_a_body_of_unknown_length_is_read_up_to_the_limit():
    piece, read = b" " * 2**16, 0

    async def receive():
        nonlocal read
        read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": True}

    request = Request({"type": "http", "headers": [(b"transfer-encoding", b"chunked")]}, receive)
    with pytest.raises(TooLarge):
        await read_body(request, CompletionBody)
    assert read <= MAX_BODY_BYTES + len(piece)


async def test_a_client_that_leaves_in_the_middle_of_its_body(gateway, caplog):
    _, writer = await asyncio.open_connection(*gateway.address)
    writer.write(b'POST /v1/completions HTTP/1.1\r\nHost: q\r\nContent-Length: 100\r\n\r\n{"model":')
    await writer.drain()
    await gateway.http.get("/health/live")
    writer.close()
    for _ in range(3):
        assert (await gateway.http.get("/health/live")).status_code == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_fault_of_ours_is_logged_and_tells_nothing(gateway, caplog):
    async def generate(request, context):
        yield TextChunk(deltas=[TextDelta(index=7, text="there is no sequence 7")])

    gateway.tokenizer.generate = generate
    response = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A"})
    assert_error(response, 500, None, "internal_error")
    assert "IndexError" in caplog.text
    assert "index" not in response.text
    (asked,) = gateway.tokenizer.requests
    assert response.headers["x-request-id"] == asked.request_id


async def test_the_largest_body_is_served(gateway):
    fields = json.dumps({"model": "m", "prompt": "A"}).encode()
    response = await gateway.http.post(COMPLETIONS, content=fields + b" " * (4 * 2**20 - len(fields)))
    assert response.status_code == 200
    response = await gateway.http.post(COMPLETIONS, content=fields + b" " * (4 * 2**20 - len(fields) + 1))
    assert_error(response, 413, None, "request_too_large")
