"""Requests that are sent twice and answered once: those with an `Idempotency-Key`.

A client that got no answer cannot know whether its request was served. With such a key it may send it again
and gets the answer that the first one got or gets, from whichever gateway. It is kept as it is made
(`claims.py`), so a second request follows an answer that is under way. A request under the same key with
another body is refused.

Errors are not kept: after one the same key may be tried again. When the client of the first request leaves,
its answer is made to the end if somebody comes for it soon; when it says that it wants no more, if somebody
waits for it already.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from math import inf

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import BadRequest, GatewayError, Unavailable
from gateway.http.body_memory import MAX_BODY_BYTES, SMALL, Held, body_too_large
from gateway.http.caller import Caller
from gateway.http.claims import HEAD, LEASE_SECONDS, PIECE, WANTED_SECONDS, Claim, ClaimLost, Claims, Entry
from gateway.http.connection import Disconnected, while_connected
from gateway.http.error_shape import last_words, refusal

HEADER = "Idempotency-Key"
REPLAYED = (b"idempotent-replayed", b"true")
"""Header of answers that another request got or gets, too."""
MAX_KEY = 255
MAX_ANSWER_BYTES = 4 * 2**20
"""Bytes of an answer that is kept. A longer one goes to the first client alone."""
PIECE_BYTES = 2**16 - 2**8
"""Bytes of a piece of an answer: with what Redis adds it fits into 64 KiB, above which it would take 80."""
ALONE_SECONDS = 30.0
"""Time for which an answer is made that nobody waits for."""

logger = logging.getLogger(__name__)


class Idempotent:
    """Middleware: see above. It comes after all checks of who asks."""

    def __init__(self, app: ASGIApp, claims: Claims) -> None:
        self._app, self._claims = app, claims

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: Caller | None = scope.get("state", {}).get("caller")
        key = _key_of(scope) if caller and scope.get("method") == "POST" else None
        if caller is None or key is None:
            await self._app(scope, receive, send)
            return
        try:
            if not 0 < len(key) <= MAX_KEY:
                message = f"An {HEADER} has 1 to {MAX_KEY} bytes."
                raise BadRequest(message, code="invalid_idempotency_key")
            held: Held = scope["state"]["body"]
            held.announced(Headers(scope=scope).get("content-length", ""))
            body = await _read(receive, held)
            fingerprint = _fingerprint(scope, body)
            while not await self._answered(key, fingerprint, body, scope, receive, send):
                pass
        except GatewayError as error:
            await refusal(error, scope)(scope, receive, send)
        except Disconnected:
            return

    async def _answered(
        self, key: str, fingerprint: str, body: bytearray, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Answer; False if the answer that there was has gone before its first byte came."""

        held: Held = scope["state"]["body"]

        def forget() -> None:
            body.clear()
            held.release()

        def follow() -> None:
            forget()
            held.grow(SMALL)  # what the client has not taken yet

        claim = await self._claims.take(scope["state"]["caller"].tenant, key, fingerprint)
        if claim.own:
            making = _Making(claim, bytes(body), scope, send)
            forget()  # the endpoint reads and holds it again
            await making.run(self._app, receive)
            return True
        return await while_connected(receive, _replay(claim, scope, send, begun=follow))


def _key_of(scope: Scope) -> str | None:
    """The request's key. Only JSON is asked twice: files may be too large to be held."""
    headers = Headers(scope=scope)
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return headers.get(HEADER) if media_type.endswith(("/json", "+json")) else None


async def _read(receive: Receive, held: Held) -> bytearray:
    """The body as it was sent, counted in `held`. Raises `TooLarge`, `Overloaded`, `Disconnected`."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        piece = message.get("body", b"")
        held.grow(len(piece))
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise body_too_large()
        if not message.get("more_body", False):
            return body


def _fingerprint(scope: Scope, body: bytearray) -> str:
    """What two requests have in common that ask for the same."""
    deployment: str = scope["state"].get("deployment", "")  # which the path has no longer, see `paths.py`
    asked = scope["path"].encode(), deployment.encode(), scope["query_string"]
    return hashlib.sha256(b"\0".join((*asked, hashlib.sha256(body).digest()))).hexdigest()


async def _replay(claim: Claim, scope: Scope, send: Send, begun: Callable[[], None]) -> bool:
    """Send the answer that there is, as it comes; False if it has gone before its head came.

    `begun`: called when its head has come. May raise.
    """
    head: Message | None = None
    try:
        async with aclosing(claim.entries()) as entries:
            async for kind, value in entries:
                if kind == HEAD:
                    begun()
                    head = _head_from(value)
                    await send(head)
                else:
                    await send({"type": "http.response.body", "body": value, "more_body": True})
    except (ClaimLost, GatewayError) as error:
        if head is None:
            if isinstance(error, GatewayError):
                raise
            return False
        lost = last_words(Unavailable("The answer to the first request has ended early."), scope)
        await send({"type": "http.response.body", "body": lost.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return True


def _head_of(message: Message) -> Entry:
    """The head of an answer as it is kept."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
    return HEAD, json.dumps({"status": message["status"], "headers": headers}).encode()


def _head_from(kept: bytes) -> Message:
    head = json.loads(kept)
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]]
    return {"type": "http.response.start", "status": head["status"], "headers": [*headers, REPLAYED]}


class _Making:
    """A request whose answer is kept while it is made."""

    def __init__(self, claim: Claim, asked: bytes, scope: Scope, send: Send) -> None:
        """`asked`: the request's body."""
        self._claim, self._scope, self._send = claim, scope, send
        self._direct: Send = scope["state"]["send"]
        self._asked: Message | None = {"type": "http.request", "body": asked, "more_body": False}
        """None once the application has it."""
        self._head: Entry | None = None
        self._body = bytearray()
        self._size = 0
        self._lost = False
        """The answer cannot be kept."""
        self._whole = False
        """The answer has had its last piece. One that is given up ends without it, and without an error."""
        self._failed = self._good = self._ended = False
        self._more = asyncio.Event()
        self._unwanted = 0.0
        self._gone = asyncio.Event()

    async def run(self, app: ASGIApp, receive: Receive) -> None:
        """Answer the client, and keep the answer if it is a good one."""
        state = self._scope["state"]
        state["send"] = self._send_past
        keeping = asyncio.ensure_future(self._keep())
        working = asyncio.ensure_future(app(self._scope, self._receive, self._send_on))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await self._while_wanted(working)
            await working
            self._good = self._whole and not (self._failed or self._lost)
        finally:
            working.cancel()
            leaving.cancel()
            self._ended = True
            self._more.set()
            await asyncio.gather(working, leaving, keeping, return_exceptions=True)

    async def _while_wanted(self, working: "asyncio.Future[None]") -> None:
        """The client has left: return when the answer is made, or nobody has come for it."""
        cancelled = self._scope["state"].get("cancelled", False)
        left, alone = (-inf, WANTED_SECONDS) if cancelled else (time.monotonic(), ALONE_SECONDS)
        self._more.set()  # so that it is known soon whether somebody waits
        while not (working.done() or self._lost):
            await asyncio.wait({working}, timeout=1)
            if min(time.monotonic() - left, self._unwanted) > alone:
                break
        self._gone.set()

    async def _receive(self) -> Message:
        if self._asked is not None:
            message, self._asked = self._asked, None
            return message
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send_on(self, message: Message) -> None:
        self._note(message)
        if self._failed and not self._lost:
            # Before the client knows: it may ask for something else at once.
            self._lost = True
            with contextlib.suppress(Unavailable):
                await self._claim.drop()
        await self._send(message)

    async def _send_past(self, message: Message) -> None:
        self._note(message)
        await self._direct(message)

    def _note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = _head_of(message)
            self._failed = not 200 <= message["status"] < 300
            return
        self._failed = self._failed or "error" in self._scope["state"]
        self._whole = not message.get("more_body", False)
        if not self._lost:
            body = message.get("body", b"")
            self._body += body
            self._size += len(body)
            self._lost = self._size > MAX_ANSWER_BYTES
            self._more.set()

    async def _keep(self) -> None:
        """Renew the claim, and add to the answer what there is of it, to the end."""
        try:
            ended = False
            while not (ended or self._lost):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LEASE_SECONDS / 3):
                        await self._more.wait()
                self._more.clear()
                ended = self._ended  # now: more of the answer may come while Redis is asked
                unwanted = await self._claim.keep(self._entries())
                self._lost = self._lost or unwanted is None
                self._unwanted = unwanted or 0
            if self._good and not self._lost:
                await self._claim.complete()
            else:
                await self._claim.drop()
        except Unavailable:
            self._lost = True

    def _entries(self) -> list[Entry]:
        """What has not been kept yet."""
        head, body = self._head, bytes(self._body)
        self._head = None
        self._body.clear()
        pieces = (body[start : start + PIECE_BYTES] for start in range(0, len(body), PIECE_BYTES))
        return ([head] if head else []) + [(PIECE, piece) for piece in pieces]


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
