"""Compressed bodies (RFC 9110, section 8.4): of requests, within bounds, and of answers if clients ask."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import BadRequest, TooLarge

STEP = 2**16
"""Bytes of a request's body that are decompressed at once. Between two steps other requests have a turn."""
SMALLEST = 1024
"""Bytes of an answer that is worth compressing."""
LEVEL = 4
"""A text becomes a quarter of its size at about 100 MB/s."""
_GZIP = 31
"""zlib's number for gzip's format with any window."""

_COMPRESSOR = ThreadPoolExecutor(1, "compress")


async def inflated(pieces: AsyncIterator[bytes], most: int) -> AsyncIterator[bytes]:
    """The decompressed body, at most `STEP` bytes at once.

    Whoever has enough stops reading: nothing is decompressed ahead. Raises `TooLarge` after `most` compressed
    bytes, and `BadRequest` for what is not one complete gzip member.
    """
    inflater, read = zlib.decompressobj(_GZIP), 0
    async for piece in pieces:
        read += len(piece)
        if read > most:
            raise TooLarge(f"The compressed body is larger than {most // 2**20} MiB.")
        if inflater.eof and piece:
            raise _refusal()
        while True:
            try:
                out = inflater.decompress(piece, STEP)
            except zlib.error:
                raise _refusal() from None
            if out:
                yield out
            piece = inflater.unconsumed_tail
            if not piece and len(out) < STEP:
                break
            await asyncio.sleep(0)
        if inflater.unused_data:
            raise _refusal()
    if not inflater.eof:
        raise _refusal()


def _refusal() -> BadRequest:
    return BadRequest("The body is not one complete gzip member.", code="invalid_encoding")


class GzipAnswers:
    """Middleware: compresses complete answers for clients that accept gzip. Streams stay as they are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not accepts_gzip(Headers(scope=scope).getlist("accept-encoding")):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def send_compressed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _worth_it(Headers(raw=message["headers"])):
                start = message  # until the body is known
                return
            if start is not None:
                held, start = start, None
                if not message.get("more_body"):
                    message = await _compressed(held, message)
                await send(held)
            await send(message)

        await self._app(scope, receive, send_compressed)


def accepts_gzip(values: list[str]) -> bool:
    """Whether `Accept-Encoding` names gzip, and not with a weight of zero."""
    for one in ",".join(values).lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() in ("gzip", "x-gzip"):
            try:
                return float(weight.partition("=")[2] or 1) > 0
            except ValueError:
                return False
    return False


def _worth_it(headers: Headers) -> bool:
    """Whether an answer is complete, as a stream has no length, and long enough."""
    length = headers.get("content-length", "0")
    return "content-encoding" not in headers and int(length) >= SMALLEST


async def _compressed(start: Message, message: Message) -> Message:
    """The body compressed; `start` says so."""
    body = message["body"]
    if len(body) <= STEP:
        packed = _pack(body)
    else:
        packed = await asyncio.get_running_loop().run_in_executor(_COMPRESSOR, _pack, body)
    headers = MutableHeaders(raw=start["headers"])
    headers["Content-Encoding"] = "gzip"
    headers["Content-Length"] = str(len(packed))
    headers.add_vary_header("Accept-Encoding")
    start["headers"] = headers.raw
    return {**message, "body": packed}


def _pack(body: bytes) -> bytes:
    return gzip.compress(body, LEVEL, mtime=0)
