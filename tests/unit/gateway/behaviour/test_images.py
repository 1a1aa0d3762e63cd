"""Images of requests: in Redis while the services behind the gateway may need them, and no longer."""

import asyncio
import json
from base64 import b64encode
from contextlib import asynccontextmanager

import grpc
import httpx
import pytest

from gateway.app import Options
from gateway.upstream import attempts
from gateway.upstream.images import LONGEST_SECONDS, MARGIN_SECONDS
from ops.runtime.image_store import ImageStore, image_file
from proto.rpc import BusAway
from proto.rpc.call import MAX_MESSAGE_BYTES
from proto.rpc.line import Line
from tests.unit.gateway.behaviour.test_resume import dying
from tests.unit.gateway.conftest import JSON, app_of, stores_of, tell

PNG = b"\x89PNG\r\n\x1a\n and a picture"
DATA = b64encode(PNG).decode()
URL = f"data:image/png;base64,{DATA}"
CHAT = "/v1/chat/completions"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, IMAGE]}]
ASK = {"model": "m", "messages": MESSAGES}
OF_EACH_API = {
    CHAT: {"messages": MESSAGES},
    "/v1/messages": {
        "max_tokens": 5,
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": DATA}}]}
        ],
    },
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": URL}]}],
        "store": False,
    },
    "/api/chat": {"messages": [{"role": "user", "content": "A", "images": [DATA]}]},
    "/api/generate": {"prompt": "A", "images": [DATA]},
    "/tokenize": {"messages": MESSAGES},
    "/v1/messages/count_tokens": {
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": DATA}}]}
        ],
    },
}


class Store:
    """An image store in memory."""

    def __init__(self):
        self.kept, self.ever, self.seconds = {}, {}, []
        self.away = 0
        """Commands that find no Redis."""

    async def put(self, name, image, seconds):
        if self.away:
            self.away -= 1
            raise BusAway("no Redis")
        self.kept[name] = self.ever[name] = image
        self.seconds.append(seconds)

    async def drop(self, names):
        for name in names:
            self.kept.pop(name, None)
        await asyncio.sleep(0)


@pytest.fixture
def store():
    return Store()


@asynccontextmanager
async def asking(backend, store):
    backend.lease_list[0].info["images"] = True
    transport = httpx.ASGITransport(app_of(backend, stores=stores_of(images=store)))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=JSON, timeout=60
    ) as http:
        yield http


@pytest.fixture
async def http(backend, store):
    async with asking(backend, store) as http:
        yield http


@pytest.fixture
def seen(tokenizer, store):
    """What the store has when a call for an answer comes; it forgets that at the call's end."""
    seen, answer = [], tokenizer.generate

    async def generate(request, context):
        seen.append(dict(store.kept))
        async for chunk in answer(request, context):
            yield chunk
        store.kept.clear()

    tokenizer.generate = generate
    return seen


@pytest.mark.parametrize("path", OF_EACH_API)
async def test_the_services_find_what_a_message_names(http, tokenizer, store, path):
    answer = await http.post(path, json={"model": "m", **OF_EACH_API[path]})
    assert answer.status_code == 200, answer.text
    ((name, image),) = store.ever.items()
    assert image == PNG
    (message,) = tokenizer.requests[0].chat.messages
    assert message.images[0].file == image_file(name, PNG)
    assert "base64" not in message.content
    assert store.kept == {}


async def test_each_call_puts_them_there_and_the_end_takes_them_away(http, tokenizer, store, seen):
    tokenizer.generate = dying(tokenizer.generate, 13, 3)
    for calls in (1, 2):
        answer = await http.post(CHAT, json=ASK | {"timeout": 9})
        assert answer.status_code == 200
        assert len(seen) == calls + calls // 2
        assert store.kept == {}
    assert seen[0]
    assert seen[1] == seen[2] != seen[0]
    assert [0 < seconds - MARGIN_SECONDS <= 9 for seconds in store.seconds] == [True] * 3


async def test_without_a_deadline_they_stay_as_long_as_any_answer_may_take(http, store):
    await http.post(CHAT, json=ASK)
    assert store.seconds == [LONGEST_SECONDS + MARGIN_SECONDS]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_takes_them_along(gateway, backend, store, tokenizer, stream):
    backend.lease_list[0].info["images"] = True
    gateway.app.state.generator._image_store = store
    begun = asyncio.Event()

    async def stuck(request, context):
        async for chunk in tell(request, context):
            yield chunk
            assert store.kept
            begun.set()
            await asyncio.Event().wait()

    tokenizer.generate = stuck
    body = json.dumps(ASK | {"stream": stream}).encode()
    _, writer = await asyncio.open_connection(*gateway.address)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await asyncio.wait_for(begun.wait(), 60)
    writer.close()
    await asyncio.wait_for(tokenizer.cancelled.wait(), 60)
    async with asyncio.timeout(60):
        while store.kept:
            await asyncio.sleep(0.001)


async def test_an_error_takes_them_away(http, tokenizer, store):
    async def refuse(request, context):
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, "it cannot be read", (("quire-param", "prompt"),)
        )
        yield

    tokenizer.generate = refuse
    answer = await http.post(CHAT, json=ASK)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
    assert store.seconds
    assert store.kept == {}


async def test_without_images_nothing_is_stored(backend, tokenizer):
    async with asking(backend, ImageStore(Line("redis://127.0.0.1:1/0"), "none:")) as http:
        for path, body in (
            (CHAT, {"messages": [{"role": "user", "content": "A"}]}),
            ("/v1/completions", {"prompt": ["A", "B"]}),
            ("/tokenize", {"prompt": "A"}),
            ("/v1/embeddings", {"input": "A"}),
        ):
            assert (await http.post(path, json={"model": "m", **body})).status_code == 200
        refused = await http.post(CHAT, json=ASK)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")


async def test_redis_comes_back(http, store, monkeypatch):
    monkeypatch.setattr(attempts, "PUT_AGAIN_SECONDS", 0.0)
    store.away = attempts.PUT_TRIES - 1
    assert (await http.post(CHAT, json=ASK)).status_code == 200
    store.away = attempts.PUT_TRIES
    answer = await http.post(CHAT, json=ASK)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert store.away == 0


async def test_a_request_that_is_ended_does_not_wait_for_redis(http, store, tokenizer, monkeypatch):
    monkeypatch.setattr(attempts, "PUT_AGAIN_SECONDS", 0.01)
    store.away = 1000
    asking = asyncio.ensure_future(http.post(CHAT, json=ASK))
    generator = http._transport.app.state.generator
    while store.away == 1000:
        await asyncio.sleep(0)
    generator.stop()
    store.away = 0
    assert (await asking).status_code == 503
    assert (store.kept, tokenizer.requests) == ({}, [])


async def test_a_deadline_ends_the_wait_for_redis(http, store):
    store.away = 1000
    answer = await http.post(CHAT, json=ASK | {"timeout": 0.01})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")


@pytest.mark.parametrize("path", OF_EACH_API)
async def test_a_model_that_sees_none(refusing, path):
    answer = await refusing.post(path, json={"model": "m", **OF_EACH_API[path]})
    assert answer.status_code == 400
    assert "The model 'm' takes no images." in answer.text


CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TURNS = [
    {"role": "user", "content": "Look"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "It: "}, IMAGE, IMAGE]},
    {"role": "user", "content": [{"type": "text", "text": "Attached:"}, IMAGE]},
]
UNSEEN = "[an image, which this model cannot see]"
EARLIER = "[an earlier image, which is left out]"
OF_A_TOOL = {
    CHAT: {"messages": TURNS},
    "/tokenize": {"messages": TURNS},
    "/v1/messages": {
        "max_tokens": 5,
        "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c",
                        "content": [{"type": "image", "source": {"type": "base64", "data": DATA}}],
                    }
                ],
            },
        ],
    },
    "/v1/responses": {
        "input": [
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [{"type": "input_image", "image_url": URL}],
            },
        ],
        "store": False,
    },
}


@pytest.mark.parametrize("path", OF_A_TOOL)
async def test_a_text_stands_for_what_a_tool_shows_to_a_model_that_sees_none(gateway, path):
    answer = await gateway.http.post(path, json={"model": "m", **OF_A_TOOL[path]})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-quire-ignored"] == "tool_result.image"
    messages = gateway.tokenizer.requests[0].chat.messages
    assert not any(message.images for message in messages)
    said = [message.content for message in messages if UNSEEN in message.content]
    two = [f"It: {UNSEEN}{UNSEEN}", f"Attached:{UNSEEN}"]
    assert said == (two if path in (CHAT, "/tokenize") else [UNSEEN])


async def test_what_a_tool_shows_is_seen_by_a_model_that_can(http, tokenizer):
    answer = await http.post(CHAT, json={"model": "m", "messages": TURNS})
    assert answer.status_code == 200
    assert "x-quire-ignored" not in answer.headers
    assert [len(message.images) for message in tokenizer.requests[0].chat.messages] == [0, 0, 2, 1]


def screenshots(count):
    """A conversation of an agent that looks at a screen."""
    call = {"role": "assistant", "tool_calls": [CALL]}
    return [{"role": "user", "content": "Click"}, *[call, {**TURNS[2], "content": [IMAGE]}] * count]


@pytest.mark.parametrize(("count", "earlier"), [(64, 0), (65, 16), (80, 16), (81, 32)])
async def test_of_many_screenshots_the_oldest_are_left_out(http, tokenizer, count, earlier):
    answer = await http.post(CHAT, json={"model": "m", "messages": screenshots(count)})
    assert answer.status_code == 200, answer.text
    results = [one for one in tokenizer.requests[0].chat.messages if one.role == "tool"]
    assert [one.content for one in results] == [EARLIER] * earlier + [""] * (count - earlier)
    assert [len(one.images) for one in results] == [0] * earlier + [1] * (count - earlier)
    assert answer.headers.get("x-quire-ignored") == ("tool_result.image" if earlier else None)


async def test_too_many_images_of_the_user_are_refused(http, backend, store):
    many = [*screenshots(3), {"role": "assistant", "content": "Done."}, *MESSAGES * 65]
    refused = await http.post(CHAT, json={"model": "m", "messages": many})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "messages")
    assert "at most 64 images, and this one has 65" in error["message"]
    transport = httpx.ASGITransport(
        app_of(backend, options=Options(strict_fields=True), stores=stores_of(images=store))
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=JSON) as strict:
        refused = await strict.post(CHAT, json={"model": "m", "messages": screenshots(65)})
        assert "and this one has 65" in refused.json()["error"]["message"]


async def test_what_the_user_shows_later_is_refused(gateway):
    later = [*TURNS, {"role": "assistant", "content": "Done."}, *MESSAGES]
    answer = await gateway.http.post(CHAT, json={"model": "m", "messages": later})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_value")


async def test_strict_gateways_refuse_what_a_tool_shows(backend):
    transport = httpx.ASGITransport(app_of(backend, options=Options(strict_fields=True)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=JSON) as http:
        answer = await http.post(CHAT, json={"model": "m", "messages": TURNS})
    assert answer.status_code == 400
    assert "takes no images" in answer.text


async def test_the_refusal_names_the_parameter(refusing):
    error = (await refusing.post(CHAT, json=ASK)).json()["error"]
    assert (error["param"], error["code"]) == ("messages", "unsupported_value")


@pytest.mark.parametrize(
    "path", ["/v1/classify", "/v1/embeddings", "/pooling", "/v1/completions", "/v1/score"]
)
async def test_where_there_are_none(refusing, path):
    key = {"/v1/classify": "messages", "/v1/completions": "prompt", "/v1/score": "text_1"}.get(path, "input")
    answer = await refusing.post(path, json={"model": "m", key: MESSAGES})
    assert answer.status_code == 400
    assert path != "/v1/classify" or "images are not supported here" in answer.text


async def test_who_asks_for_models_learns_which_see(http, refusing):
    seeing, blind = [(await one.get("/v1/models/m")).json() for one in (http, refusing)]
    assert [one["input_modalities"] for one in (seeing, blind)] == [["text", "image"], ["text"]]


async def test_a_text_that_no_message_carries(refusing):
    text = "A" * (MAX_MESSAGE_BYTES + 1)
    for path, body in (
        ("/v1/completions", {"prompt": ["A", text]}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
        ("/tokenize", {"prompt": text}),
        ("/v1/embeddings", {"input": text}),
    ):
        answer = await refusing.post(path, json={"model": "m", **body})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large"), path


async def test_redis_keeps_them(backend, tokenizer, line, prefix):
    names = []

    async def generate(request, context):
        file = request.chat.messages[0].images[0].file
        names.append(file.name)
        assert await ImageStore(line, prefix).get(file) == PNG
        (seconds,) = await line.execute(("TTL", f"{prefix}images:{file.name}"))
        assert 0 < seconds <= 7 + MARGIN_SECONDS
        async for chunk in tell(request, context):
            yield chunk

    tokenizer.generate = generate
    async with asking(backend, ImageStore(line, prefix)) as http:
        assert (await http.post(CHAT, json=ASK | {"timeout": 7})).status_code == 200
    assert await line.execute(("EXISTS", f"{prefix}images:{names[0]}")) == [0]
