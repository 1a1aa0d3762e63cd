"""What a client can draw out has an end: head, body, reading the answer, and an idle connection."""

import asyncio
import contextlib
import json
from dataclasses import replace

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.http.connections import MAX_PROBES, ConnectionLimits
from gateway.http.protocol import HttpProtocol
from gateway.http.timed import MAX_PIPELINED, Phase
from tests.unit.gateway.conftest import serving

LONG = ConnectionLimits(head=60, body=60, idle=60, linger=60, write=60)
SOON = 0.2
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"


class App:
    """Reads the body, and answers as the path says; notes how its requests ended."""

    def __init__(self):
        self.ended = asyncio.Event()
        self.under_way = 0

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        self.under_way += 1
        path = scope["path"]
        while path != "/refuse":
            message = await receive()
            if message["type"] == "http.disconnect":
                self.ended.set()
                return
            if not message.get("more_body"):
                break
        if path == "/wait":
            await self._watch(receive)
            return
        status = 413 if path == "/refuse" else 200
        headers = [] if path in ("/endless", "/slow") else [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if path == "/endless":
            watching = asyncio.ensure_future(self._watch(receive))
            while not self.ended.is_set():
                await send({"type": "http.response.body", "body": bytes(2**16), "more_body": True})
                await asyncio.sleep(0)
            await watching
            return
        if path == "/slow":
            for _ in range(5):
                await asyncio.sleep(SOON)
                await send({"type": "http.response.body", "body": b"-", "more_body": True})
        await send({"type": "http.response.body", "body": b"" if path == "/slow" else b"ok"})

    async def _watch(self, receive):
        while (await receive())["type"] != "http.disconnect":
            pass
        self.ended.set()


async def rest(reader) -> bytes:
    """Everything until the server closes the connection."""
    return await asyncio.wait_for(reader.read(), 60)


async def open_to(server):
    return await asyncio.open_connection("127.0.0.1", server.port)


def error_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.rpartition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return int(head.rsplit(b"HTTP/1.1 ", 1)[1][:3]), json.loads(body)["error"]["code"]


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nX-Slow: "])
async def test_a_head_that_does_not_come(begun):
    async with serving(App(), replace(LONG, head=SOON)) as server:
        reader, writer = await open_to(server)
        writer.write(begun)
        assert error_of(await rest(reader)) == (408, "request_timeout")


def shorten(server, phase):
    """From now on a phase of the connections there are lasts only a moment."""
    for connection in server.server_state.connections:
        _, end = connection._ends[phase]
        connection._ends[phase] = SOON, end


async def test_a_second_head_that_does_not_come():
    async with serving(App(), LONG) as server:
        reader, writer = await open_to(server)
        writer.write(GET)
        await reader.readuntil(b"ok")
        shorten(server, Phase.HEAD)
        writer.write(b"G")
        assert error_of(await rest(reader)) == (408, "request_timeout")


@pytest.mark.parametrize("more", [b"", b"\r\n"])
async def test_an_idle_connection(more):
    async with serving(App(), replace(LONG, idle=SOON)) as server:
        reader, writer = await open_to(server)
        writer.write(GET)
        await reader.readuntil(b"ok")
        writer.write(more)
        with contextlib.suppress(ConnectionResetError):  # closed before these bytes came
            assert await rest(reader) == b""


async def test_a_body_that_does_not_come():
    app = App()
    async with serving(app, replace(LONG, body=SOON)) as server:
        reader, writer = await open_to(server)
        writer.write(POST + b"half")
        assert error_of(await rest(reader)) == (408, "request_timeout")
        await asyncio.wait_for(app.ended.wait(), 60)


async def test_a_body_that_comes_fast_enough_has_more_time():
    async with serving(App(), replace(LONG, body=SOON, body_rate=0.1)) as server:
        reader, writer = await open_to(server)
        writer.write(POST)
        for _ in range(10):
            writer.write(bytes(10))  # a hundred seconds more
            await asyncio.sleep(SOON / 4)
        assert b"200 OK" in await reader.readuntil(b"ok")


async def test_bytes_between_chunks_are_no_body():
    """Chunk extensions, of which a client can send any number."""
    async with serving(App(), replace(LONG, body=SOON, body_rate=1)) as server:
        reader, writer = await open_to(server)
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"1;" + b"x" * 10_000)
        assert error_of(await rest(reader)) == (408, "request_timeout")


async def test_the_rest_of_a_refused_body_that_does_not_come():
    async with serving(App(), replace(LONG, linger=SOON)) as server:
        reader, writer = await open_to(server)
        writer.write(POST.replace(b" / ", b" /refuse ") + b"half")
        assert b" 413 " in await rest(reader)


async def test_the_rest_of_a_refused_body_is_passed_over():
    async with serving(App(), LONG) as server:
        reader, writer = await open_to(server)
        writer.write(POST.replace(b" / ", b" /refuse ") + bytes(50))
        assert b" 413 " in await reader.readuntil(b"ok")
        writer.write(bytes(50) + GET)
        assert b" 200 " in await reader.readuntil(b"ok")


async def test_a_client_that_does_not_read_is_cut_off():
    app = App()
    async with serving(app, replace(LONG, write=SOON)) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(GET.replace(b" / ", b" /endless "))
        await asyncio.wait_for(app.ended.wait(), 60)
        assert not server.server_state.connections
        writer.close()


class Transport(asyncio.Transport):
    """A connection whose client takes nothing: it closes only when it is cut."""

    def __init__(self):
        super().__init__()
        self.closing, self.aborted = False, asyncio.Event()

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data):
        pass

    def close(self):
        self.closing = True

    def is_closing(self):
        return self.closing

    def abort(self):
        self.aborted.set()

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


@pytest.mark.parametrize(
    "request_", [GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), GET, b"nonsense\r\n\r\n"]
)
async def test_what_is_left_to_write_does_not_keep_a_closed_connection(request_):
    """An answer, the keep-alive time after an answer, and a refusal."""
    times = replace(LONG, idle=SOON, write=SOON)
    config = uvicorn.Config(App(), ws="none", lifespan="off", log_config=None)
    config.load()
    made = HttpProtocol(config, ServerState(), {}, limits=times)
    transport = Transport()
    made.connection_made(transport)
    made.data_received(request_)
    await asyncio.wait_for(transport.aborted.wait(), 60)
    assert transport.closing, "it was closed in order, and what was left to write kept it open"
    made.connection_lost(None)


async def test_an_answer_may_take_longer_than_any_phase():
    app = App()
    async with serving(app, replace(LONG, body=SOON, idle=SOON, linger=SOON, write=SOON)) as server:
        reader, writer = await open_to(server)
        writer.write(GET.replace(b" / ", b" /slow "))
        while not app.under_way:
            await asyncio.sleep(0)
        shorten(server, Phase.HEAD)
        assert (await rest(reader)).count(b"\r\n-\r\n") == 5


async def test_too_many_connections():
    async with serving(App(), replace(LONG, connections=2)) as server:
        held = [await open_to(server) for _ in range(2)]
        for reader, writer in held:
            writer.write(GET)
            await reader.readuntil(b"ok")
        reader, writer = await open_to(server)
        writer.write(GET)
        assert error_of(await rest(reader)) == (503, "too_many_connections")
        held[0][1].close()
        while len(server.server_state.connections) > 1:
            await asyncio.sleep(0)
        reader, writer = await open_to(server)
        writer.write(GET)
        assert b" 200 " in await reader.readuntil(b"ok")


FULL = replace(LONG, connections=1, probe=60)


@pytest.mark.parametrize("path", [b"/health/live", b"/health/ready?verbose", b"/v2/health/live", b"/ping"])
async def test_who_watches_over_the_gateway_is_answered_however_many_connections_are_open(path):
    async with serving(App(), FULL) as server:
        _held = await open_to(server)
        silent = [await open_to(server) for _ in range(MAX_PROBES + 10)]
        for reader, _ in silent[:10]:
            assert error_of(await rest(reader)) == (503, "too_many_connections"), "they have made way"
        reader, writer = await open_to(server)
        writer.write(GET.replace(b" / ", b" %s " % path) * 2)
        answer = await rest(reader)
        assert answer.endswith(b"ok")
        assert answer.count(b"HTTP/1.1 ") == 1, "one request, after which its connection ends"
        reader, writer = silent[-1]
        writer.write(GET)
        assert error_of(await rest(reader)) == (503, "too_many_connections")


@pytest.mark.parametrize("path", [b"/health/../v1/models", b"/health/livex", b"//health/live", b"/v1/stream"])
async def test_nothing_else_is_answered_then(path):
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    async with serving(App(), FULL) as server:
        _held = await open_to(server)
        reader, writer = await open_to(server)
        writer.write(GET.replace(b" / ", b" %s " % path).removesuffix(b"\r\n") + upgrade)
        assert error_of(await rest(reader)) == (503, "too_many_connections")


async def test_a_connection_too_many_that_says_nothing_is_closed_soon():
    async with serving(App(), replace(FULL, probe=SOON)) as server:
        _held = await open_to(server)
        reader, _ = await open_to(server)
        assert error_of(await rest(reader)) == (503, "too_many_connections")


async def test_too_many_requests_before_an_answer():
    app = App()
    async with serving(app, LONG) as server:
        reader, writer = await open_to(server)
        writer.write(GET * (MAX_PIPELINED + 10))
        assert error_of(await rest(reader)) == (429, "overloaded")
        assert app.under_way <= 2


@pytest.mark.parametrize("path", [b"/endless", b"/wait"])
async def test_a_client_that_leaves_requests_behind(path):
    """The one that is answered ends, and not only the newest one."""
    app = App()
    async with serving(app, LONG) as server:
        _, writer = await open_to(server)
        writer.write(GET.replace(b" / ", b" %s " % path) + GET)
        while not app.under_way:
            await asyncio.sleep(0)
        writer.transport.abort()
        await asyncio.wait_for(app.ended.wait(), 60)
        assert app.under_way == 1


async def test_what_cannot_be_read_does_not_become_a_part_of_an_answer():
    app = App()
    async with serving(app, LONG) as server:
        reader, writer = await open_to(server)
        writer.write(GET.replace(b" / ", b" /slow "))
        begun = await reader.readuntil(b"\r\n-\r\n")
        writer.write(b"\0" * 100)
        answer = begun + await rest(reader)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"\r\n0\r\n" not in answer, "the client sees that the answer is not whole"


async def test_as_many_requests_as_may_come_before_an_answer():
    async with serving(App(), LONG) as server:
        reader, writer = await open_to(server)
        writer.write(GET * MAX_PIPELINED)
        for _ in range(MAX_PIPELINED):
            assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"ok"), 60)
