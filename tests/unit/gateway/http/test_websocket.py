"""What a client can fill or draw out on a WebSocket: messages, pings, and what it does not read."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.http import websocket
from gateway.http.body_memory import BodyMemory, Held
from gateway.http.websocket import PIECE_BYTES, ParsingTurns, WebSocketProtocol
from tests.unit.gateway.conftest import serving
from tests.unit.gateway.http.test_timed import GET, LONG, SOON, Transport

HEAD = b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
HEAD += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + b"A" * 22 + b"==\r\n\r\n"
CONTINUATION, TEXT, CLOSE, PING, PONG = 0, 1, 8, 9, 10


def frame(opcode: int, data: bytes, last: bool = True) -> bytes:
    """A short frame, masked with zeros (RFC 6455, section 5.2)."""
    return bytes([0x80 * last | opcode, 0x80 | len(data), 0, 0, 0, 0]) + data


class App:
    """Accepts a WebSocket, and notes its messages as long as it is to take some."""

    def __init__(self, most: int = 10**9) -> None:
        self.most, self.taken, self.ended = most, [], asyncio.Event()
        self.answer, self.closes = "", False

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(2**24)})
            return
        try:
            await receive()
            await send({"type": "websocket.accept"})
            while len(self.taken) < self.most:
                message = await receive()
                if message["type"] == "websocket.disconnect":
                    return
                self.taken.append(message["text"])
                if self.answer:
                    await send({"type": "websocket.send", "text": self.answer})
            if self.closes:
                await send({"type": "websocket.close"})
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@asynccontextmanager
async def deaf(app: App, write_seconds: float = SOON) -> AsyncIterator[tuple]:
    """Streams of a client that hardly reads, and the server's connections."""
    async with serving(app, replace(LONG, write=write_seconds)) as server:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", server.port))
        reader, writer = await asyncio.open_connection(sock=made, limit=1)
        yield reader, writer, server.server_state.connections
        writer.transport.abort()


async def gone(app: App, connections: list) -> None:
    async with asyncio.timeout(60):
        await app.ended.wait()
        while connections:
            await asyncio.sleep(0.01)


async def test_a_client_that_pings_and_does_not_read_is_cut_off():
    app, most = App(), 0
    async with deaf(app) as (reader, writer, connections):
        writer.write(HEAD)
        await reader.read(1)
        (connection,) = connections
        pings = frame(PING, bytes(125)) * 1000
        async with asyncio.timeout(60):
            while connections:
                if writer.transport.get_write_buffer_size() < len(pings):
                    writer.write(pings)
                await asyncio.sleep(0)
                most = max(most, connection.transport.get_write_buffer_size())
        await gone(app, connections)
    assert 0 < most < 2**20, "no more is read than can be answered"


async def test_a_client_that_does_not_read_its_answers_is_cut_off():
    app = App()
    app.answer = "x" * 2**20
    async with deaf(app) as (reader, writer, connections):
        writer.write(HEAD)
        await reader.read(1)
        writer.write(frame(TEXT, b"x") * 100)
        await gone(app, connections)
    assert len(app.taken) < 100


async def test_one_that_has_not_read_the_answer_before_is_cut_off():
    app = App()
    async with deaf(app, 2) as (_, writer, connections), asyncio.timeout(60):
        writer.write(GET)
        while not any(each.cycle and each.cycle.response_complete for each in connections):
            await asyncio.sleep(0)
        writer.write(HEAD)
        while not any(isinstance(each, WebSocketProtocol) for each in connections):
            await asyncio.sleep(0)
        await gone(app, connections)
        assert not app.taken


class Paced(Transport):
    """Notes whether it is read from."""

    reading = True

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


@asynccontextmanager
async def opened(app: App, turns: ParsingTurns | None = None) -> AsyncIterator[WebSocketProtocol]:
    """A connection whose client takes nothing."""
    config = uvicorn.Config(app, lifespan="off", log_config=None, ws_per_message_deflate=False)
    config.load()
    made = WebSocketProtocol(config, ServerState(), {}, write_seconds=SOON, turns=turns)
    made.connection_made(Paced())
    made.data_received(HEAD)
    async with asyncio.timeout(60):
        while not made.handshake_complete:
            await asyncio.sleep(0)
    try:
        yield made
    finally:
        made.connection_lost(None)
        for task in made.tasks:
            task.cancel()


async def test_one_that_answers_no_ping_is_closed_and_cut_off():
    async with opened(App()) as made:
        made.send_keepalive_ping()
        made.keepalive_timeout()
        assert made.transport.closing
        await asyncio.wait_for(made.transport.aborted.wait(), 60)


async def test_the_answer_to_a_ping_may_wait_until_the_client_reads():
    async with opened(App()) as made:
        made.send_keepalive_ping()
        made.pause_writing()
        pong = frame(PONG, made.pending_ping_payload)
        made.data_received(pong)
        made.keepalive_timeout()
        assert not made.transport.closing
        made.resume_writing()
        assert made.pending_ping_payload is None
        await asyncio.sleep(2 * SOON)
        assert not made.transport.aborted.is_set(), "the time for writing has ended"


async def test_the_answer_to_a_ping_may_wait_to_be_parsed(monkeypatch):
    monkeypatch.setattr(websocket, "TURN_SECONDS", 0)
    async with opened(App()) as made:
        made.send_keepalive_ping()
        made.data_received(frame(PING, b"") * 1000 + frame(PONG, made.pending_ping_payload))
        made.keepalive_timeout()
        assert not made.transport.closing
        async with asyncio.timeout(60):
            while made.pending_ping_payload is not None:
                await asyncio.sleep(0)


async def test_nothing_is_read_that_cannot_be_answered():
    async with opened(App()) as made:
        assert made.transport.reading
        made.pause_writing()
        made.data_received(frame(PING, b""))
        assert not made.transport.reading
        made.resume_writing()
        assert made.transport.reading


async def test_nothing_is_read_while_the_application_is_busy():
    app = App(most=1)
    async with opened(app) as made:
        made.data_received(frame(TEXT, b"x"))
        async with asyncio.timeout(60):
            while not app.taken:
                await asyncio.sleep(0)
        assert not made.transport.reading


async def test_a_large_message_counts_until_the_application_asks_for_the_next_one():
    app, memory = App(most=1), BodyMemory()
    async with opened(app) as made:
        made.hold_messages(Held(memory, "t"))
        made.data_received(frame(TEXT, b"", last=False) + frame(CONTINUATION, b"x" * 125, last=False) * 1000)
        made.data_received(frame(CONTINUATION, b""))
        async with asyncio.timeout(60):
            while not app.taken:
                await asyncio.sleep(0)
        assert memory.held == 125_000
    assert memory.held == 0


async def test_a_client_may_answer_that_the_socket_is_closed():
    app = App(most=1)
    app.closes = True
    async with opened(app) as made:
        made.data_received(frame(TEXT, b"x"))
        async with asyncio.timeout(60):
            while not made.close_sent:
                await asyncio.sleep(0)
        assert made.transport.reading
        made.data_received(frame(CLOSE, b""))
        assert made.transport.closing


async def test_the_end_of_an_application_leaves_no_connection():
    async with opened(App(most=0)) as made:
        for task in made.tasks:
            task.cancel()
        await asyncio.wait_for(made.transport.aborted.wait(), 60)
        assert made.transport.aborted.is_set()


async def test_messages_that_nobody_takes_yet_are_not_parsed():
    app = App(most=1)
    async with opened(app) as made:
        short = frame(TEXT, b"x")
        made.data_received(short * 2**15)
        async with asyncio.timeout(60):
            while not app.taken:
                await asyncio.sleep(0)
        made.data_received(short)
        assert made.queue.qsize() <= PIECE_BYTES // len(short) + 1


async def test_all_messages_of_a_read_are_taken():
    app, turns = App(), 0
    async with opened(app) as made:
        made.data_received(b"".join(frame(TEXT, b"%d" % number) for number in range(5000)))
        async with asyncio.timeout(60):
            while len(app.taken) < 5000:
                await asyncio.sleep(0)
                turns += 1
    assert app.taken == [str(number) for number in range(5000)]
    assert turns >= 4000, "others had their turns meanwhile"


@pytest.mark.parametrize("short", [frame(PING, b""), frame(CONTINUATION, b"", last=False)])
async def test_short_frames_leave_turns_to_others(short, monkeypatch):
    """A read may bring 40,000 of them, which take seconds."""
    monkeypatch.setattr(websocket, "TURN_SECONDS", 0)
    app, turns = App(), 0
    async with opened(app) as made:
        made.data_received(frame(TEXT, b"a", last=False) + short * 5000 + frame(CONTINUATION, b"b"))
        async with asyncio.timeout(60):
            while not app.taken:
                await asyncio.sleep(0)
                turns += 1
    assert app.taken == ["ab"]
    assert turns >= 5000 * len(short) // PIECE_BYTES


async def test_connections_share_the_time_for_parsing(monkeypatch):
    """Two hundred that flood would otherwise hold everything else up for all their turns together."""
    monkeypatch.setattr(websocket, "TURN_SECONDS", 0)
    turns, number, pieces = ParsingTurns(), 20, 30
    async with AsyncExitStack() as stack:
        several = [await stack.enter_async_context(opened(App(), turns)) for _ in range(number)]
        parsed, parse = [], WebSocketProtocol.parse

        def noted(made: WebSocketProtocol, end: float) -> bool:
            before = len(made._unread)
            more = parse(made, end)
            parsed.append((several.index(made), before - len(made._unread)))
            return more

        monkeypatch.setattr(WebSocketProtocol, "parse", noted)
        ping = frame(PING, bytes(PIECE_BYTES // 2 - 6))  # two are a piece
        for made in several:
            made.data_received(ping * 2 * pieces)
        assert not any(made.transport.reading for made in several)
        for turn in range(number * pieces):
            assert [size for _, size in parsed[turn:]] == [PIECE_BYTES], "one piece in each turn of the loop"
            had = Counter(parsed)
            assert max(had.values()) - had[number - 1, PIECE_BYTES] <= 2, "one connection after the other"
            await asyncio.sleep(0)
        assert len(parsed) == number * pieces
        assert all(made.transport.reading for made in several)


@pytest.mark.parametrize("piece", [b"", b"ab"])
async def test_pieces_of_a_message_are_kept_as_one(piece):
    app = App()
    async with opened(app) as made:
        made.data_received(frame(TEXT, b"", last=False))
        made.data_received(frame(CONTINUATION, piece, last=False) * 1000)
        assert len(made.frames) == 1
        made.data_received(frame(CONTINUATION, b"c"))
        async with asyncio.timeout(60):
            while not app.taken:
                await asyncio.sleep(0)
    assert app.taken == [(piece * 1000 + b"c").decode()]
