"""What clients do on their connections that has nothing to do with what they ask."""

import asyncio
import json

import pytest

from gateway.http.protocol import MAX_HEAD_BYTES, MAX_HEADERS, MAX_UNPARSED_BYTES

BODY = json.dumps({"model": "m", "prompt": "A"}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"


def post(headers: bytes = b"") -> bytes:
    return HEAD + b"Content-Length: %d\r\n%s\r\n" % (len(BODY), headers) + BODY


def chunked(headers: bytes = b"") -> bytes:
    head = HEAD + b"Transfer-Encoding: chunked\r\n%s\r\n" % headers
    return head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


async def answers(gateway, *pieces: bytes, count: int) -> list[int]:
    """Statuses of a number of answers on one connection that is sent the pieces one by one."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)
    statuses = []
    async with asyncio.timeout(60):
        for _ in range(count):
            head = await reader.readuntil(b"\r\n\r\n")
            statuses.append(int(head.split()[1]))
            (length,) = [int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length")]
            await reader.readexactly(length)
    writer.close()
    return statuses


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
@pytest.mark.parametrize("request_", [post, chunked])
async def test_an_offer_to_change_the_protocol_is_passed_over(gateway, offer, request_):
    whole = request_(offer)
    for pieces in ([whole], [whole[:-20], whole[-20:]], [whole[:60], whole[60:]]):
        assert await answers(gateway, *pieces, post(), count=2) == [200, 200]
    assert [request.text for request in gateway.tokenizer.requests] == ["A"] * 6


async def test_offers_in_a_row(gateway):
    assert await answers(gateway, (post(H2C) + post() + chunked(H2C)) * 20, count=60) == [200] * 60


@pytest.mark.parametrize("headers", [b"", H2C])
async def test_a_tunnel_is_refused(gateway, headers):
    assert await answers(
        gateway, b"CONNECT q:80 HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % headers, count=1
    ) == [400]


@pytest.mark.parametrize(
    ("start", "size"), [(b"GET / HTTP/1.1\r\nX: ", MAX_UNPARSED_BYTES), (b"GET /", MAX_HEAD_BYTES)]
)
async def test_a_head_without_end(gateway, start, size):
    piece = b"x" * 2**16
    pieces = [start, *[piece] * (size // len(piece))]
    assert await answers(gateway, *pieces, count=1) == [431]


@pytest.mark.parametrize("headers", [b"a:\r\n" * (MAX_HEADERS + 1), b"a: " + b"x" * MAX_HEAD_BYTES + b"\r\n"])
async def test_a_head_with_too_much_in_it(gateway, headers):
    request = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
    assert await answers(gateway, request % headers, count=1) == [431]
    most = b"a:\r\n" * (MAX_HEADERS - 1)
    assert await answers(gateway, request % most, count=1) == [200]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("head", [b"", b"Connection: keep-alive\r\nHost: localhost\r\n"])
async def test_an_answer_to_an_old_client_ends_with_its_connection(gateway, stream, head):
    body = json.dumps({"model": "m", "prompt": "A", "max_tokens": 3, "stream": stream}).encode()
    lines = (
        b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s"
    )
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(lines % (len(body), head, body))
    async with asyncio.timeout(60):
        found, _, text = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert b"\r\nconnection: close" in found
    assert b"transfer-encoding" not in found
    assert (b"\r\ncontent-length: %d\r\n" % len(text) in found) != stream
    if stream:
        *events, end = [line.removeprefix(b"data: ") for line in text.split(b"\n\n")[:-1]]
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == "Once upon a"
        assert end == b"[DONE]"
    else:
        assert json.loads(text)["choices"][0]["text"] == "Once upon a"


@pytest.mark.parametrize("path", ["/", "/health/live", "/v1/models", "/v1/models/m"])
async def test_a_head_is_a_get_without_its_body(gateway, path):
    asked = await gateway.http.head(path)
    got = await gateway.http.get(path)
    assert (asked.status_code, asked.content) == (200, b"")
    assert asked.headers["content-length"] == got.headers["content-length"]
    assert (await gateway.http.head("/v1/completions")).status_code == 405
