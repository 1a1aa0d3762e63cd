"""Bad input ends with an error of its own, and the answer that streams beside it notices nothing."""

import asyncio
import socket
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import redis

from proto.wire_pb2 import CANCEL, HALF_CLOSE, MESSAGE, OPEN, PROBE, STATUS, Entry
from tests.support.deployment import Deployment
from tests.support.seeing import picture

JSON = {"Content-Type": "application/json"}
GOOD: dict[str, Any] = {
    "model": "quire-tiny",
    "prompt": "Once upon a time",
    "max_tokens": 4,
    "temperature": 0,
}
LONG = GOOD | {"max_tokens": 100, "ignore_eos": True}


@pytest.fixture
async def http(deployment: Deployment) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=deployment.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def in_peace(deployment: Deployment) -> object:
    """The long answer while nobody sends bad input."""
    return httpx.post(f"{deployment.url}/v1/completions", json=LONG, timeout=60).json()["choices"]


@pytest.fixture
async def beside(http: httpx.AsyncClient, in_peace: object) -> AsyncIterator[None]:
    """A long answer runs while the test does, and must be the one that it is in peace."""
    running = asyncio.create_task(http.post("/v1/completions", json=LONG))
    await asyncio.sleep(0)
    yield
    assert (await running).json()["choices"] == in_peace


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "no-such-model"}, 404, "model"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [10**9]}, 400, "prompt"),
        ({"prompt": [1] * 100_000}, 400, "prompt"),
        ({"prompt": "word " * 100_000}, 400, "prompt"),
        ({"prompt": 7}, 400, "prompt"),
        ({"max_tokens": -2}, 400, "max_tokens"),
        ({"max_tokens": 10**12}, 400, "max_tokens"),
        ({"temperature": -1}, 400, "temperature"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"top_p": -0.1}, 400, "top_p"),
        ({"top_p": 1.5}, 400, "top_p"),
        ({"min_p": 2}, 400, "min_p"),
        ({"n": 0}, 400, "n"),
        ({"n": 10**6}, 400, "n"),
        ({"logprobs": 10**6}, 400, "logprobs"),
        ({"presence_penalty": 99}, 400, "presence_penalty"),
        ({"stop": [""]}, 400, "stop[0]"),
        ({"seed": "x"}, 400, "seed"),
    ],
)
async def test_a_bad_parameter_is_named(
    http: httpx.AsyncClient, beside: None, fields: dict[str, Any], status: int, param: str
) -> None:
    answer = await http.post("/v1/completions", json=GOOD | fields)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["message"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": "word " * 3000}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 3000}]}, "messages"),
        ("/v1/embeddings", {"input": "word " * 3000}, "input"),
        ("/v1/completions", {"prompt": "word " * 300_000}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 300_000}]}, "messages"),
        ("/v1/embeddings", {"input": "word " * 300_000}, "input"),
    ],
)
async def test_what_is_too_long_for_the_context_says_so(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post(path, json={"model": "quire-tiny"} | fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert error["message"].startswith("prompt is too long: ")
    assert "maximum context length is 2048 tokens" in error["message"]
    # What is much too long is refused before it is made into tokens.
    assert ("characters" in error["message"]) == ("word " * 300_000 in str(fields))


@pytest.mark.parametrize("words", [300, 30_000])
async def test_clients_of_ollama_need_not_keep_a_conversation_short(
    http: httpx.AsyncClient, words: int
) -> None:
    said = [{"role": role, "content": "word " * words} for role in ("user", "assistant") * 9]
    question = [{"role": "user", "content": "Tell me a story about a fox."}]
    ask = {"model": "quire-tiny", "messages": said + question, "stream": False}
    answer = await http.post("/api/chat", json=ask)
    assert answer.status_code == 200, answer.text
    assert answer.json()["prompt_eval_count"] < 2048
    assert (await http.post("/api/chat", json=ask | {"truncate": False})).status_code == 400


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": [5] * 2040, "max_tokens": 9}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "word " * 300}], "max_tokens": 32_000},
        ),
        ("/v1/responses", {"input": "word " * 300, "max_output_tokens": 32_000, "store": False}),
    ],
)
async def test_an_answer_may_be_allowed_more_tokens_than_the_context_has_room_for(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any]
) -> None:
    answer = await http.post(path, json={"model": "quire-tiny"} | fields)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["total_tokens"] <= 2048


@pytest.mark.parametrize(
    ("path", "param"), [("/v1/chat/completions", "messages"), ("/v1/responses", "input")]
)
async def test_a_model_that_sees_nothing_refuses_images(
    http: httpx.AsyncClient, path: str, param: str
) -> None:
    url = f"data:image/png;base64,{b64encode(picture(8, 8)).decode()}"
    part = {"type": "image_url", "image_url": {"url": url}}
    if param == "input":
        part = {"type": "input_image", "image_url": url}
    answer = await http.post(path, json={"model": "quire-tiny", param: [{"role": "user", "content": [part]}]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_value", param)
    assert "takes no images" in error["message"]


async def test_broken_json_is_a_400(http: httpx.AsyncClient, beside: None) -> None:
    answer = await http.post("/v1/completions", content=b'{"model": ', headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_fifty_megabytes_are_refused(http: httpx.AsyncClient, beside: None) -> None:
    answer = await http.post("/v1/completions", content=b"x" * 50_000_000, headers=JSON)
    assert answer.status_code == 413
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
async def test_foreign_pages_are_refused(
    http: httpx.AsyncClient, beside: None, headers: dict[str, str], status: int
) -> None:
    answer = await http.post("/v1/completions", json=GOOD, headers=headers)
    assert answer.status_code == status


async def test_a_body_of_empty_messages_holds_nobody_up(http: httpx.AsyncClient, beside: None) -> None:
    body = b'{"model":"quire-tiny","messages":[' + b'{"role":"u","content":""},' * 161_000 + b"{}]}"
    answers = await asyncio.gather(
        *(http.post("/v1/chat/completions", content=body, headers=JSON) for _ in range(10))
    )
    assert {answer.status_code for answer in answers} == {400}


async def test_a_client_that_leaves_frees_its_place(http: httpx.AsyncClient, beside: None) -> None:
    for _ in range(5):
        async with http.stream(
            "POST", "/v1/completions", json=GOOD | {"max_tokens": 1500, "stream": True}
        ) as answer:
            async for line in answer.aiter_lines():
                assert line.startswith("data: ")
                break
    assert (await http.post("/v1/completions", json=GOOD)).status_code == 200


async def test_a_client_that_stops_reading_holds_nobody_up(
    deployment: Deployment, http: httpx.AsyncClient, beside: None
) -> None:
    body = b'{"model":"quire-tiny","prompt":"Once","n":8,"max_tokens":1500,"ignore_eos":true,"stream":true}'
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", deployment.port))
        deaf.sendall(head + body)
        for _ in range(3):
            assert (await http.post("/v1/completions", json=GOOD)).status_code == 200


async def test_malformed_entries_go_to_the_dead_letters(
    deployment: Deployment, http: httpx.AsyncClient, beside: None
) -> None:
    connection = redis.Redis.from_url(deployment.server.url, socket_timeout=60)
    streams = [
        key
        # Not the workers' door: nobody reads it while the only worker is leased.
        for pattern in ("calls:Tokenizer:*", "calls:Scheduler:*", "inbox:*")
        for key in connection.scan_iter(deployment.prefix + pattern)
    ]
    assert len(streams) >= 6, streams
    letters = f"{deployment.prefix}dead-letters"
    before = connection.xlen(letters)
    for stream in streams:
        connection.xadd(stream, {b"garbage": b"\xff\x00"})
        connection.xadd(stream, {b"e": b"\xff\xff\xff"})
    for _ in range(1200):
        if connection.xlen(letters) >= before + 2 * len(streams):
            break
        await asyncio.sleep(0.05)
    assert connection.xlen(letters) == before + 2 * len(streams)
    assert (await http.post("/v1/completions", json=GOOD)).status_code == 200


LEASES = [
    b'{"service": "tokenizer", "epoch": Infinity, "info": {"model": "m"}}',
    b'{"service": "scheduler", "epoch": 1, "info": {"model": "\\ud800", "workers": 1}, "doors": [[1]]}',
    b'{"service": "tokenizer", "epoch": 1, "info": {"model": "quire-tiny", "defaults": {"top_k": NaN}}}',
    b'{"service": "scheduler", "epoch": 1, "info": ' + b"[" * 50_000,
]


async def test_no_entry_and_no_lease_stops_a_process(
    deployment: Deployment, http: httpx.AsyncClient, beside: None
) -> None:
    """Each of these could be decoded, or nearly, and ended a task of every process that read it."""
    connection, prefix = redis.Redis.from_url(deployment.server.url, socket_timeout=60), deployment.prefix
    for number, lease in enumerate(LEASES):
        name = f"{'scheduler' if b'scheduler' in lease else 'tokenizer'}-hostile{number}"
        connection.set(f"{prefix}alive:{name}", lease, ex=5)
        connection.sadd(f"{prefix}processes", name)
    connection.sadd(f"{prefix}processes", b"\xff")
    for door, method in (
        ("Tokenizer", "/quire.Tokenizer/Generate"),
        ("Scheduler", "/quire.Scheduler/Nothing"),
    ):
        for number, attempt in enumerate((b"\xc2\xb2", b"9" * 5000, b"\xff", b"1")):
            entry = Entry(sender="nobody-1", epoch=1)
            frame = entry.requests.add(call=number, seq=1, kind=OPEN)
            frame.open.method, frame.open.timeout = method, -1.0 if door == "Tokenizer" else 4e9
            frame.metadata.add(key="quire-attempt", value=attempt)
            entry.requests.add(call=number, seq=2, kind=MESSAGE, body=b"\xff\xff")
            connection.xadd(f"{prefix}calls:{door}:quire-tiny", {b"e": entry.SerializeToString()})
    strange = Entry(sender="nobody-1", epoch=2**32 - 1)
    for call in range(20):
        for kind in (MESSAGE, HALF_CLOSE, STATUS, CANCEL, PROBE, 77):
            strange.requests.add(call=call, seq=call, kind=kind)  # type: ignore[arg-type]
            strange.responses.add(call=call, seq=call, kind=kind).status.code = 99  # type: ignore[arg-type]
    for key in connection.scan_iter(f"{prefix}inbox:*"):
        connection.xadd(key, {b"e": strange.SerializeToString()}, nomkstream=True)
    for _ in range(3):
        assert (await http.post("/v1/completions", json=GOOD)).status_code == 200
        models = await http.get("/v1/models")
        assert [model["id"] for model in models.json()["data"]] == ["quire-tiny"]
        await asyncio.sleep(0.7)
    for name, processes in deployment.processes.items():
        assert [process.poll() for process in processes] == [None] * len(processes), name
