"""What a stream sends while nothing of the answer comes."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import grpc
import httpx
import pytest
from starlette.types import Message

from gateway.http import sse
from gateway.http.body_memory import BodyMemory, Held
from gateway.http.frames import Pieces
from gateway.http.sse import COMMENT, EventStream
from proto.sampling_pb2 import STOP
from proto.tokenizer_pb2 import TextChunk, TextDelta
from tests.unit.gateway.conftest import tell

MESSAGES = [{"role": "user", "content": "Hi"}]
ASKED = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/v1/responses": {"input": "Hi"},
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "Hi"},
}
ERRORS = {
    "/v1/chat/completions": 'data: {"error": {"message": "no good"',
    "/v1/completions": 'data: {"error": {"message": "no good"',
    "/v1/messages": 'event: error\ndata: {"type": "error"',
    "/v1/responses": "event: response.failed\n",
    "/api/chat": '{"error": "no good"}',
    "/api/generate": '{"error": "no good"}',
}


async def events(path: str, answer: httpx.Response) -> AsyncIterator[str]:
    """Each event, or line, of a stream, however many of them come at once."""
    end, text = "\n" if path.startswith("/api/") else "\n\n", ""
    async for piece in answer.aiter_text():
        *whole, text = (text + piece).split(end)
        for event in whole:
            yield event + end


def is_sign(path: str, event: str) -> bool:
    """Whether an event is what says on this path that the answer is being made."""
    match path:
        case "/v1/messages":
            return event == 'event: ping\ndata: {"type":"ping"}\n\n'
        case "/v1/responses":
            return event.startswith("event: response.in_progress\n")
        case "/api/chat" | "/api/generate":
            line = json.loads(event)
            text = line["response"] if path == "/api/generate" else line["message"]["content"]
            return (text, line["done"], line["model"]) == ("", False, "m")
    return event == COMMENT


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.05)


@pytest.mark.parametrize("path", ASKED)
async def test_a_stream_says_that_it_is_alive(gateway, soon, path):
    heard, signs = asyncio.Event(), 3

    async def generate(request, context):
        await heard.wait()
        async for chunk in tell(request, context):
            yield chunk

    gateway.tokenizer.generate = generate
    came = []
    async with gateway.http.stream(
        "POST", path, json={"model": "m", "stream": True, **ASKED[path]}
    ) as answer:
        assert answer.status_code == 200
        async for event in events(path, answer):
            came.append(event)
            if len(came) == signs:
                heard.set()
    if path == "/v1/responses":
        assert came.pop(0).startswith("event: response.created\n")
        signs -= 1
    assert [is_sign(path, event) for event in came[:signs]] == [True] * signs
    rest = "".join(came[signs:])
    assert "Once" in rest
    assert "response.created" not in rest


@pytest.mark.parametrize("path", ASKED)
async def test_also_between_two_pieces(gateway, soon, path):
    heard = asyncio.Event()

    async def generate(request, context):
        yield TextChunk(deltas=[TextDelta(text="a", token_ids=[1])])
        await heard.wait()
        yield TextChunk(deltas=[TextDelta(text="b", token_ids=[2], finish_reason=STOP)])

    gateway.tokenizer.generate = generate
    begun = False
    async with gateway.http.stream(
        "POST", path, json={"model": "m", "stream": True, **ASKED[path]}
    ) as answer:
        async for event in events(path, answer):
            begun = begun or '"a"' in event
            if begun and is_sign(path, event):
                heard.set()
    assert heard.is_set()


@pytest.mark.parametrize("path", ASKED)
async def test_an_error_after_a_sign_is_an_event(gateway, soon, path):
    heard = asyncio.Event()

    async def generate(request, context):
        await heard.wait()
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no good")
        yield

    gateway.tokenizer.generate = generate
    text = ""
    async with gateway.http.stream(
        "POST", path, json={"model": "m", "stream": True, **ASKED[path]}
    ) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_text():
            text += piece
            heard.set()
    assert ERRORS[path] in text
    assert "[DONE]" not in text


async def test_an_openai_client_passes_over_comments(gateway, soon):
    async def generate(request, context):
        await asyncio.sleep(0.2)
        async for chunk in tell(request, context):
            yield chunk

    gateway.tokenizer.generate = generate
    client = gateway.openai()
    stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    said = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(said).startswith("Once upon a time")
    async with client.responses.stream(model="m", input="Hi") as events:
        assert (await events.get_final_response()).output_text == "".join(said)


async def test_a_client_that_leaves_a_silent_stream_cancels_its_call(gateway, soon, caplog):
    async def generate(request, context):
        await asyncio.Event().wait()
        yield

    gateway.tokenizer.generate = generate
    ask = {"model": "m", "prompt": "A", "stream": True}
    async with gateway.http.stream("POST", "/v1/completions", json=ask) as answer:
        async for piece in answer.aiter_text():
            assert piece == COMMENT
            break
    await asyncio.wait_for(gateway.tokenizer.cancelled.wait(), 60)
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_a_websocket_has_no_comments():
    assert list(Pieces("text/event-stream").add(COMMENT.encode())) == []


class Client:
    """Takes what is sent, unless it is told to wait."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, Message]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.held = Held(BodyMemory(), "t")

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.sent.append((time.monotonic(), message))

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for _, message in self.sent[1:]]

    async def read(self, stream: EventStream) -> None:
        state = {"send": self.send, "request_id": "r", "body": self.held}
        scope = {"type": "http", "path": "/v1/completions", "state": state}
        await stream(scope, self.receive, self.send)


async def test_a_client_that_does_not_read_gets_one_at_a_time(soon):
    client, go_on = Client(), asyncio.Event()

    async def events():
        await go_on.wait()
        yield "a"

    client.reads.clear()
    reading = asyncio.ensure_future(client.read(EventStream(events())))
    await asyncio.sleep(0.3)
    go_on.set()
    await asyncio.sleep(0.1)
    client.reads.set()
    await reading
    assert [message["type"] for _, message in client.sent[:2]] == [
        "http.response.start",
        "http.response.body",
    ]
    assert client.bodies == [COMMENT.encode(), b"a", b""]


async def test_a_large_piece_counts_until_the_next_one_is_sent():
    """uvicorn writes a piece when the client has taken the one before."""
    client, sizes = Client(), []

    async def events():
        for piece in ("a", "b" * 2**20, "c" * 2**21, "d", "e"):
            yield piece
            sizes.append(client.held.size)

    await client.read(EventStream(events()))
    assert sizes == [0, 2**20, 2**21, 0, 0]


async def test_the_time_counts_from_the_last_piece(monkeypatch):
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.3)
    client = Client()

    async def events():
        for piece in "abcd":
            yield piece
            await asyncio.sleep(0.1)
        while COMMENT.encode() not in client.bodies:
            await asyncio.sleep(0.01)

    await client.read(EventStream(events()))
    times = [at for at, _ in client.sent[1:]]
    sign = client.bodies.index(COMMENT.encode())
    assert times[sign] - times[sign - 1] >= 0.3 * 0.99
