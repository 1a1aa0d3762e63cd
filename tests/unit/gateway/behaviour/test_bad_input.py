"""Whatever a client sends, it gets an error of its own that names what is wrong."""

import asyncio
import gzip
import json

import pytest
from starlette.requests import Request

from gateway.api.common.body import MAX_BODY_BYTES, read_body
from gateway.api.openai.completions_schema import CompletionBody
from gateway.errors import TooLarge
from gateway.http.body_memory import BodyMemory, Held
from proto.tokenizer_pb2 import TextChunk, TextDelta

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
HUGE = 10**30
TOOL = {"type": "function", "function": {"name": "f"}}


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 1


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
    ({"max_tokens": -2}, "max_tokens", "invalid_value"),
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
    ({"temperature": 100.1}, "temperature", "invalid_value"),
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
    ({"stop": ""}, "stop[0]", "invalid_value"),
    ({"stop": 3}, "stop", "invalid_type"),
    ({"stop": ["a", 3]}, "stop[1]", "invalid_type"),
    ({"stop": ["a"] * 65}, "stop", "invalid_value"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
    ({"stop_token_ids": 5}, "stop_token_ids", "invalid_type"),
    ({"logprobs": 21}, "logprobs", "invalid_value"),
    ({"logprobs": True}, "logprobs", "invalid_type"),
    ({"stream": "yes"}, "stream", "invalid_type"),
    ({"stream": True, "stream_options": []}, "stream_options", "invalid_type"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"model": 5}, "model", "invalid_type"),
    ({"echo": 0}, "echo", "invalid_type"),
    ({"suffix": 1}, "suffix", "invalid_type"),
    ({"suffix": "end", "prompt": [5]}, "suffix", "invalid_value"),
    ({"best_of": 1, "n": 2}, "best_of", "invalid_value"),
    ({"best_of": 2, "stream": True}, "best_of", "invalid_value"),
    ({"best_of": 129}, "best_of", "invalid_value"),
    ({"prompt": ["a", "b"], "best_of": 65}, "best_of", "invalid_value"),
    ({"logit_bias": {"five": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"05": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"2147483648": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"9" * 30: 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"5": True}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias", "invalid_value"),
    ({"logit_bias": [5]}, "logit_bias", "invalid_type"),
    ({"logit_bias": {"5": 1}, "use_beam_search": True}, "logit_bias", "invalid_value"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_value"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]", "invalid_value"),
    ({"bad_words": [""]}, "bad_words[0]", "invalid_value"),
    ({"dry_sequence_breakers": ["x"] * 33}, "dry_sequence_breakers", "invalid_value"),
    ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers", "invalid_value"),
    ({"bad_words": ["x"] * 129}, "bad_words", "invalid_value"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "invalid_value"),
    ({"min_tokens": 2, "use_beam_search": True}, "min_tokens", "invalid_value"),
    ({"detokenize": False, "stop": "x"}, "stop", "invalid_value"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
    ({"logits_processors": ["a.b"]}, "logits_processors", "unsupported_parameter"),
    ({"structural_tag": {"type": "object"}}, "structural_tag", "unsupported_parameter"),
    ({"length_penalty": 0.5}, "length_penalty", "invalid_value"),
    ({"seed": 1.5}, "seed", "invalid_type"),
    ({"max_tokens": 1e300}, "max_tokens", "invalid_value"),
]
BAD_CHATS = [
    (
        {"continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
        "invalid_value",
    ),
    ({"documents": ["x"]}, "documents[0]", "invalid_type"),
    ({"documents": [{}] * 1025}, "documents", "invalid_value"),
    ({"chat_template": "x" * 65_537}, "chat_template", "invalid_value"),
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
    *(
        (
            {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": calls}]},
            f"messages[1].tool_calls{place}",
            code,
        )
        for calls, place, code in (
            ([{}], "[0].function", "missing_required_parameter"),
            ({"id": "a"}, "", "invalid_type"),
            ([{"function": {"name": ""}}], "[0].function.name", "invalid_value"),
            ([{"function": {"name": "f", "arguments": 5}}], "[0].function.arguments", "invalid_type"),
            ([{"type": "custom", "function": {"name": "f"}}], "[0]", "invalid_value"),
        )
    ),
    (
        {"messages": [{"role": "assistant", "audio": {"id": "a"}}]},
        "messages[0].audio",
        "unsupported_parameter",
    ),
    ({"messages": [{"role": "tool", "tool_call_id": 5}]}, "messages[0].tool_call_id", "invalid_type"),
    ({"messages": [{"role": "user", "content": "", "name": 1}]}, "messages[0].name", "invalid_type"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, "max_tokens", "invalid_value"),
    ({"logprobs": 1}, "logprobs", "invalid_type"),
    ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "invalid_value"),
    ({"tools": ["f"]}, "tools[0]", "invalid_type"),
    ({"tools": [{"name": "f"}]}, "tools[0]", "invalid_type"),
    ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0].function", "invalid_value"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]},
        "tools[0].function.parameters",
        "invalid_type",
    ),
    ({"tools": {}}, "tools", "invalid_type"),
    ({"tools": [TOOL] * 1025}, "tools", "invalid_value"),
    ({"tools": [TOOL | {"x": nested(65)}]}, "tools", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tool_choice": "required", "tools": []}, "tool_choice", "invalid_value"),
    (
        {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]},
        "tool_choice",
        "invalid_value",
    ),
    ({"tool_choice": {"type": "function"}, "tools": [TOOL]}, "tool_choice", "invalid_value"),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}},
        "tool_choice",
        "invalid_value",
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "often", "tools": []}}},
        "tool_choice",
        "invalid_value",
    ),
    ({"tool_choice": "required", "tools": [TOOL], "guided_regex": "a"}, "tool_choice", "invalid_value"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]},
        "tools[0].function.strict",
        "invalid_type",
    ),
    ({"tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
    ({"tool_choice": 5}, "tool_choice", "invalid_value"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "invalid_type"),
    ({"functions": [{}]}, "tools[0].function", "invalid_value"),
    ({"functions": {}}, "functions", "invalid_type"),
    ({"functions": [{"name": "f"}], "function_call": "maybe"}, "tool_choice", "invalid_value"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
    ({"audio": {"voice": "a"}}, "audio", "unsupported_parameter"),
    ({"reasoning_effort": 3}, "reasoning_effort", "invalid_type"),
    ({"thinking_token_budget": -1}, "thinking_token_budget", "invalid_value"),
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
    b'{"model": "m", "prompt": "\\ud80"}',
    b'{"model": "m", "prompt": "A", "temperature": NaN}',
    b'{"model": "m", "prompt": "A", "seed": ' + b"9" * 5000 + b"}",
    b"[" * 10_000,
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
        ([{"role": "assistant", "function_call": {}}], "'messages[0].function_call' is not"),
        ([{"role": "assistant", "function_call": {"name": 5}}], "'messages[0].function_call' is not"),
    ],
)
async def test_errors_are_about_json_and_not_about_python(refusing, messages, said):
    response = await refusing.post(CHAT, json={"model": "m", "messages": messages})
    assert response.json()["error"]["message"].startswith(said)


async def test_an_item_that_is_none_is_told_so(refusing):
    for path, body in (
        ("/v1/responses", {"input": ["A"]}),
        ("/v1/responses", {"input": "A", "tools": [None]}),
        ("/v1/messages", {"max_tokens": 1, "messages": ["A"]}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [5]}]}),
    ):
        refused = await refusing.post(path, json={"model": "m", **body})
        assert (refused.status_code, "input should be an object." in refused.text) == (400, True), (
            refused.text
        )


async def test_a_compressed_body(refusing):
    for encoding in ("br", "gzip, gzip"):
        response = await refusing.post(COMPLETIONS, content=b"{}", headers={"Content-Encoding": encoding})
        assert_error(response, 415, None, "unsupported_content_encoding")
        assert response.headers["accept-encoding"] == "gzip, identity"


@pytest.mark.parametrize("encoding", ["", " ", "identity", "Identity"])
async def test_a_body_that_says_that_it_is_not_compressed(refusing, encoding):
    response = await refusing.post(COMPLETIONS, content=b"{}", headers={"Content-Encoding": encoding})
    assert_error(response, 400, "prompt", "missing_required_parameter")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (gzip.compress(b'{"model": "m", "prompt": ""}'), 400, "invalid_value"),
        (gzip.compress(b" " * (MAX_BODY_BYTES + 1)), 413, "request_too_large"),
        (gzip.compress(b" " * 2**26), 413, "request_too_large"),
        (gzip.compress(b"{}")[:-1], 400, "invalid_encoding"),
        (gzip.compress(b"{}") + gzip.compress(b" "), 400, "invalid_encoding"),
        (b"{}", 400, "invalid_encoding"),
        (b"", 400, "invalid_encoding"),
    ],
    ids=["empty prompt", "large", "bomb", "cut", "two", "plain", "nothing"],
)
async def test_a_body_in_gzip(refusing, body, status, code):
    response = await refusing.post(COMPLETIONS, content=body, headers={"Content-Encoding": "gzip"})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


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
    assert_error(await http.get("/redoc"), 404, None, "unknown_url")
    assert_error(await http.get(CHAT), 405, None, "method_not_allowed")
    assert_error(await http.delete("/v1/models"), 405, None, "method_not_allowed")
    assert_error(await http.get("/v1/models/nobody"), 404, "model", "model_not_found")
    response = await http.post(COMPLETIONS, json={"model": "nobody", "prompt": "A", "stream": True})
    assert_error(response, 404, "model", "model_not_found")
    assert response.headers["content-type"] == "application/json"


async def test_a_huge_body_with_its_length_is_refused_before_it_is_sent(gateway):
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 52428800\r\n\r\n{"
    )
    status = await asyncio.wait_for(reader.readline(), 60)
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

    headers = [(b"transfer-encoding", b"chunked"), (b"content-type", b"application/json")]
    memory = BodyMemory()
    request = Request({"type": "http", "headers": headers, "state": {"body": Held(memory)}}, receive)
    with pytest.raises(TooLarge):
        await read_body(request, CompletionBody)
    assert memory.held == read <= MAX_BODY_BYTES + len(piece)


async def test_a_client_that_leaves_in_the_middle_of_its_body(gateway, caplog):
    _, writer = await asyncio.open_connection(*gateway.address)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b'Content-Length: 100\r\n\r\n{"model":'
    )
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
    assert response.headers["connection"] == "close"
    # The server closes the connection on which it was.
    for _ in range(3):
        assert (await gateway.http.get("/health/live")).status_code == 200


async def test_the_largest_body_is_served(gateway):
    fields = json.dumps({"model": "m", "prompt": "A"}).encode().ljust(MAX_BODY_BYTES)
    response = await gateway.http.post(COMPLETIONS, content=fields)
    assert response.status_code == 200
    response = await gateway.http.post(COMPLETIONS, content=fields + b" ")
    assert_error(response, 413, None, "request_too_large")
