"""The WebSocket /v1/stream, as a client of the websockets package sees it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.http import protocol, socket_session
from gateway.http.body_memory import MAX_HELD_BYTES
from gateway.http.connections import ConnectionLimits
from gateway.http.protocol import HttpProtocol
from gateway.http.socket_session import SocketSession
from gateway.http.websocket import KEYLESS_BYTES, SMALL_BYTES
from gateway.parsing import parsed
from ops.runtime.limits import Limits
from proto.sampling_pb2 import NOT_FINISHED, STOP
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta
from tests.unit.gateway.conftest import PROMPT_TOKENS, WORDS, Server, app_of, serving

SECRET = "s" * 24


async def _no_key(_: str) -> str:
    return ""


def opened(server: Server, **more: Any) -> connect:
    return connect(f"ws://127.0.0.1:{server.port}/v1/stream", proxy=None, **more)


async def say(socket: ClientConnection, type_: str, **fields: object) -> None:
    await socket.send(json.dumps({"type": type_, **fields}))


async def ask(socket: ClientConnection, id_: str, path: str = "/v1/completions", **fields: object) -> None:
    body = {"model": "m", "prompt": "A", "stream": True, **fields}
    await say(socket, "request", id=id_, path=path, body=body)


async def heard(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(60):
        found: dict[str, Any] = json.loads(await socket.recv())
        return found


async def until_ends(socket: ClientConnection, *ids: str) -> dict[str, list[dict[str, Any]]]:
    """All messages until each of these has ended, by id."""
    found: dict[str, list[dict[str, Any]]] = {id_: [] for id_ in ids}
    open_still = set(ids)
    while open_still:
        message = await heard(socket)
        found[message["id"]].append(message)
        if message["type"] in ("end", "answer", "error"):
            open_still.discard(message["id"])
    return found


def text_of(messages: list[dict[str, Any]]) -> str:
    return "".join(one["data"]["choices"][0]["text"] for one in messages if one["type"] == "event")


@contextlib.asynccontextmanager
async def socket_of(backend: Any, **more: Any) -> AsyncIterator[ClientConnection]:
    async with serving(app_of(backend, **more)) as server, opened(server) as socket:
        yield socket


async def stuck(request, context):
    yield TextChunk(prompt=PromptInfo(tokens=len(PROMPT_TOKENS)))
    yield TextChunk(deltas=[TextDelta(text="one", token_ids=[1], finish_reason=NOT_FINISHED)])
    await asyncio.Event().wait()


async def test_several_answers_on_one_socket(backend):
    async with socket_of(backend) as socket:
        for id_ in ("a", "b", "c"):
            await ask(socket, id_)
        found = await until_ends(socket, "a", "b", "c")
        for messages in found.values():
            assert text_of(messages) == "".join(WORDS)
            assert [one["type"] for one in messages] == ["event"] * (len(messages) - 1) + ["end"]
        ids = {messages[0]["data"]["id"] for messages in found.values()}
        assert len(ids) == 3
        await ask(socket, "a", stream=False)
        (whole,) = (await until_ends(socket, "a"))["a"]
        assert (whole["type"], whole["status"]) == ("answer", 200)
        assert whole["body"]["choices"][0]["text"] == "".join(WORDS)


async def test_events_with_names_and_lines(backend):
    async with socket_of(backend) as socket:
        asked = {"max_tokens": 4, "messages": [{"role": "user", "content": "A"}]}
        await ask(socket, "r", "/v1/messages", prompt=None, **asked)
        messages = (await until_ends(socket, "r"))["r"]
        assert messages[0]["event"] == messages[0]["data"]["type"] == "message_start"
        assert messages[-2]["event"] == "message_stop"
        await ask(socket, "o", "/api/generate")
        lines = (await until_ends(socket, "o"))["o"]
        assert "".join(one["data"]["response"] for one in lines[:-1]) == "".join(WORDS)


async def test_one_is_cancelled_and_the_others_go_on(backend, tokenizer):
    go_on = asyncio.Event()

    async def generate(request, context):
        yield TextChunk(prompt=PromptInfo(tokens=len(PROMPT_TOKENS)))
        yield TextChunk(deltas=[TextDelta(text="one", token_ids=[1], finish_reason=NOT_FINISHED)])
        await go_on.wait()
        yield TextChunk(deltas=[TextDelta(text="two", token_ids=[2], finish_reason=STOP)])

    tokenizer.generate = generate
    async with socket_of(backend) as socket:
        for id_ in ("a", "b"):
            await ask(socket, id_)
        assert {(await heard(socket))["id"], (await heard(socket))["id"]} == {"a", "b"}
        await say(socket, "cancel", id="unknown")
        await say(socket, "cancel", id="a")
        assert await heard(socket) == {"type": "end", "id": "a", "cancelled": True}
        await asyncio.wait_for(tokenizer.cancelled.wait(), 60)
        go_on.set()
        assert text_of((await until_ends(socket, "b"))["b"]) == "two"
        await ask(socket, "a")
        assert text_of((await until_ends(socket, "a"))["a"]) == "onetwo", "the id is free again"


async def test_all_end_when_the_client_leaves(backend, tokenizer):
    tokenizer.generate = stuck
    async with socket_of(backend) as socket:
        await ask(socket, "a")
        await heard(socket)
    await asyncio.wait_for(tokenizer.cancelled.wait(), 60)


def frame(opcode: int, data: bytes) -> bytes:
    """A last frame, masked with zeros (RFC 6455, section 5.2)."""
    return bytes([0x80 | opcode, 0x80 | len(data), 0, 0, 0, 0]) + data


TEXT, UNKNOWN = 1, 11
NO_TEXT = frame(TEXT, b"\xff")


@pytest.mark.parametrize(
    "last",
    [NO_TEXT, NO_TEXT * 2, frame(UNKNOWN, b"")],
    ids=["no-text", "twice", "unknown"],
)
async def test_a_client_that_breaks_the_protocol_has_left(backend, tokenizer, caplog, last):
    async def generate(request, context):
        yield TextChunk(prompt=PromptInfo(tokens=len(PROMPT_TOKENS)))
        while True:
            yield TextChunk(deltas=[TextDelta(text="one", token_ids=[1], finish_reason=NOT_FINISHED)])
            await asyncio.sleep(0)

    tokenizer.generate = generate
    async with socket_of(backend) as socket:
        for id_ in "abc":
            await ask(socket, id_)
            await heard(socket)
        socket.transport.write(last)
        async with asyncio.timeout(60):
            await socket.wait_closed()
            await tokenizer.cancelled.wait()
    assert not caplog.records


async def test_a_client_that_breaks_it_before_the_socket_is_open(caplog):
    asked, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        if scope["type"] != "websocket":
            return
        asked.set()
        await go_on.wait()
        try:
            await send({"type": "websocket.accept"})
        finally:
            ended.set()

    head = "GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    head += f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n\r\n"
    async with serving(app) as server, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head.encode())
        await asked.wait()
        writer.write(frame(UNKNOWN, b""))
        await reader.read()
        go_on.set()
        await ended.wait()
    assert not caplog.records


async def test_an_answer_that_finds_the_client_gone_ends_the_session(backend):
    messages = iter([{"type": "websocket.connect"}, {"type": "websocket.receive", "text": "no frame"}])

    async def receive():
        return next(messages)

    async def send(message):
        if message["type"] == "websocket.send":
            raise OSError

    socket = WebSocket({"type": "websocket", "headers": []}, receive, send)
    await socket.accept()
    await SocketSession(app_of(backend), socket, None, "", _no_key).run()
    assert not list(messages)


async def test_what_is_wrong_is_told_and_the_socket_stays(backend, tokenizer, monkeypatch):
    monkeypatch.setattr(socket_session, "MAX_AT_ONCE", 1)
    tokenizer.generate = stuck
    async with socket_of(backend) as socket:
        for text in ("no JSON", b"bytes", "x" * 2**17):
            await socket.send(text)
            refused = await heard(socket)
            assert (refused["type"], refused["id"], refused["status"]) == ("error", None, 400)
        await ask(socket, "a", n=0)
        (refused,) = (await until_ends(socket, "a"))["a"]
        assert (refused["type"], refused["status"], refused["body"]["error"]["param"]) == ("answer", 400, "n")
        await ask(socket, "a", "/v1/nothing")
        assert (await heard(socket))["status"] == 404
        await ask(socket, "a")
        assert (await heard(socket))["type"] == "event"
        await ask(socket, "a")
        assert (await heard(socket))["error"]["param"] == "id"
        await ask(socket, "b")
        assert (await heard(socket))["status"] == 429
    assert len(tokenizer.requests) == 1


async def test_keys_come_by_header_subprotocol_or_message(backend, keys_of):
    async with serving(app_of(backend, keys_of({SECRET: "north"}))) as server:
        for more in (
            {"additional_headers": {"Authorization": f"Bearer {SECRET}"}},
            {"subprotocols": ["quire", f"quire-key.{SECRET}"]},
        ):
            async with opened(server, **more) as socket:
                assert socket.subprotocol == ("quire" if "subprotocols" in more else None)
                await ask(socket, "a")
                assert text_of((await until_ends(socket, "a"))["a"]) == "".join(WORDS)
        async with opened(server) as socket:
            await ask(socket, "a")
            (refused,) = (await until_ends(socket, "a"))["a"]
            assert (refused["status"], refused["body"]["error"]["code"]) == (401, "invalid_api_key")
            await say(socket, "key", key=SECRET)
            await ask(socket, "a")
            assert text_of((await until_ends(socket, "a"))["a"]) == "".join(WORDS)


async def test_limits_hold(backend):
    async with socket_of(backend, limits=Limits(sequences=1)) as socket:
        await ask(socket, "a", n=2)
        assert (await heard(socket))["status"] == 400


async def test_foreign_pages_may_not_open_one(backend, caplog):
    async with serving(app_of(backend)) as server:
        for headers, opens in (
            ({"Origin": "https://evil.example"}, False),
            ({"Origin": f"http://127.0.0.1:{server.port}"}, True),
        ):
            if opens:
                async with opened(server, additional_headers=headers) as socket:
                    await ask(socket, "a", max_tokens=1)
                    await until_ends(socket, "a")
                continue
            with pytest.raises(InvalidStatus) as refused:
                await opened(server, additional_headers=headers)
            assert refused.value.response.status_code == 403
    assert [record.name for record in caplog.records] == ["gateway.http.origin"]


async def test_a_slash_at_the_end_changes_nothing(backend):
    async with (
        serving(app_of(backend)) as server,
        connect(f"ws://127.0.0.1:{server.port}/v1/stream/", proxy=None) as socket,
    ):
        await ask(socket, "a", "/v1/completions/")
        assert text_of((await until_ends(socket, "a"))["a"]) == "".join(WORDS)


async def test_elsewhere_the_offer_is_ignored(backend):
    async with serving(app_of(backend)) as server:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{server.port}/v1/models", proxy=None)
        assert refused.value.response.status_code == 200


async def test_an_idle_socket_is_closed(backend, tokenizer, monkeypatch):
    monkeypatch.setattr(socket_session, "IDLE_SECONDS", 0.01)
    async with socket_of(backend) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            await heard(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001


async def test_a_socket_counts_as_a_connection_until_it_is_closed(backend, monkeypatch):
    before: list[HttpProtocol] = []

    class Noted(HttpProtocol):
        def handle_websocket_upgrade(self) -> None:
            super().handle_websocket_upgrade()
            before.append(self)

    monkeypatch.setattr(protocol, "HttpProtocol", Noted)
    async with serving(app_of(backend), ConnectionLimits(connections=1)) as server:
        async with opened(server) as socket:
            with pytest.raises(InvalidStatus) as refused:
                await opened(server)
            assert refused.value.response.status_code == 503
            await ask(socket, "a", max_tokens=1)
            await until_ends(socket, "a")
            assert (before[0]._timer, before[0]._write_timer) == (None, None), "HTTP waits for nothing more"
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(InvalidStatus):  # until the gateway has seen the other one's end
                    await (await opened(server)).close()
                    break


async def test_a_gateway_that_stops_takes_no_more(backend):
    app = app_of(backend)
    async with serving(app) as server, opened(server) as socket:
        app.state.drain.begun = True
        await ask(socket, "a")
        assert (await heard(socket))["status"] == 503


LARGE = "A" * 2 * SMALL_BYTES


async def test_large_messages_come_from_who_has_shown_a_key(backend, keys_of):
    async with serving(app_of(backend, keys_of({SECRET: "north"}))) as server:
        async with opened(server) as socket:
            await say(socket, "key", key=SECRET)
            await ask(socket, "a", prompt=LARGE)  # without waiting for anything
            assert (await until_ends(socket, "a"))["a"][-1]["type"] == "end"
        async with opened(server, additional_headers={"x-api-key": SECRET}) as socket:
            await ask(socket, "a", prompt=LARGE)
            assert (await until_ends(socket, "a"))["a"][-1]["type"] == "end"
        async with opened(server) as socket:
            await say(socket, "key", key="unknown")
            await ask(socket, "a", prompt=LARGE[: KEYLESS_BYTES // 2])
            assert (await heard(socket))["status"] == 401
            await ask(socket, "a", prompt=LARGE[:KEYLESS_BYTES])
            with pytest.raises(ConnectionClosed) as closed:
                await heard(socket)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009


async def test_an_invalid_key_gives_no_further_turns(backend, keys_of, monkeypatch):
    """Large messages are parsed by tenants in turns, and nobody has two turns."""
    tenants: list[str] = []

    async def noted(tenant: str, size: int, parse: Any) -> Any:
        tenants.append(tenant)
        return await parsed(tenant, size, parse)

    monkeypatch.setattr(socket_session, "parsed", noted)
    async with serving(app_of(backend, keys_of({SECRET: "north"}))) as server, opened(server) as socket:
        await say(socket, "key", key=SECRET)
        await say(socket, "key", key="unknown")
        await ask(socket, "a", prompt=LARGE)
        assert (await heard(socket))["status"] == 401
    assert tenants == ["", "north", "north", "north"]


async def test_a_large_message_that_has_not_ended_counts_as_bodies_do(backend):
    app = app_of(backend)

    async def pieces() -> AsyncIterator[str]:
        for _ in range(5):
            yield "x" * SMALL_BYTES
        await asyncio.Event().wait()

    async with serving(app) as server, opened(server) as socket:
        sending = asyncio.ensure_future(socket.send(pieces()))
        async with asyncio.timeout(60):
            while app.state.bodies.held <= 4 * SMALL_BYTES:
                await asyncio.sleep(0)
        sending.cancel()
        socket.transport.abort()
        async with asyncio.timeout(60):
            while app.state.bodies.held:
                await asyncio.sleep(0)
    assert app.state.bodies.held == 0


async def test_a_large_message_without_room_closes_the_socket(backend):
    app = app_of(backend)
    app.state.bodies.held = MAX_HELD_BYTES
    async with serving(app) as server, opened(server) as socket:
        await ask(socket, "a")
        assert text_of((await until_ends(socket, "a"))["a"]) == "".join(WORDS)
        await ask(socket, "a", prompt=LARGE[: SMALL_BYTES + 1])
        with pytest.raises(ConnectionClosed) as closed:
            await heard(socket)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013


async def test_answers_that_wait_for_the_client_are_under_way(backend, monkeypatch):
    monkeypatch.setattr(socket_session, "MAX_AT_ONCE", 2)
    asked, full, read = [], asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        asked.append(scope["path"])
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    requests = [{"type": "request", "id": id_, "path": "/v1/x", "body": {}} for id_ in "abc"]
    texts = [{"type": "websocket.receive", "text": json.dumps(each)} for each in requests]
    messages = iter([{"type": "websocket.connect"}, *texts])

    async def receive():
        await asyncio.sleep(0.01)
        for message in messages:
            return message
        await read.wait()
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(message):
        if message["type"] == "websocket.send":
            if json.loads(message["text"])["type"] == "error":
                full.set()
            await read.wait()

    socket = WebSocket({"type": "websocket", "headers": []}, receive, send)
    await socket.accept()
    running = asyncio.ensure_future(SocketSession(app, socket, None, "", _no_key).run())
    await asyncio.wait_for(full.wait(), 60)
    assert len(asked) == 2
    read.set()
    await running
