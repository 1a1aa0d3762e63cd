"""Requests that the gateway makes of itself, for jobs: through all middleware, and not over the network.

They have the limits, the counts, the traces and the answers of any other request.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope

from gateway.behalf import Behalf
from gateway.errors import UnknownModel

HELD_PIECES = 16
"""Pieces of an answer that wait to be read. Then the answer waits."""
AGAIN = (429, 503)
"""Statuses of requests that may be answered later."""
USUAL_WAIT = 1.0
START_SECONDS = 600.0
"""Time from the gateway's start in which a job may name a model that is not known yet, while none answers."""
KNOWN_SECONDS = 30.0
"""The same while other models answer: a model is known as soon as its scheduler runs."""
NOTHING: Mapping[str, Any] = {}


class Reply:
    """The answer to a request of the gateway's own."""

    def __init__(
        self, head: Message, state: Mapping[str, Any], pieces: AsyncGenerator[bytes, None], age: float
    ) -> None:
        """`age`: seconds since the gateway started."""
        self.status: int = head["status"]
        self.headers = Headers(raw=head.get("headers", []))
        self._age = age
        self.pieces = pieces
        """The body as it comes."""
        self.state = state
        """The request's state, such as the `error` that has ended a stream."""

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces])

    @property
    def again_in(self) -> float | None:
        """Seconds after which to ask again; None if that does not help."""
        error = self.state.get("error")
        if isinstance(error, UnknownModel):
            return USUAL_WAIT if self._age < (KNOWN_SECONDS if error.others else START_SECONDS) else None
        if self.status not in AGAIN or self.headers.get("x-should-retry") == "false":
            return None
        wait = self.headers.get("retry-after", "")
        return float(wait) if wait.isdecimal() else USUAL_WAIT


class OwnRequests:
    """Asks `app`."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock, self._began = clock, clock()

    @asynccontextmanager
    async def ask(
        self, path: str, body: bytes, behalf: Behalf, state: Mapping[str, Any] = NOTHING
    ) -> AsyncIterator[Reply]:
        """POST a JSON body on somebody's behalf; the answer, from its head on. It is given up at the end.

        `state`: of the request, such as its `request_id`.
        """
        scope = json_post(path, len(body), {b"host": b"localhost"}, {**state, "behalf": behalf})
        messages: asyncio.Queue[Message | None] = asyncio.Queue(HELD_PIECES)
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            for message in given:
                return message
            await asyncio.Event().wait()  # this client does not leave before the end
            raise AssertionError

        async def run() -> None:
            try:
                await self._app(scope, receive, messages.put)
            finally:
                if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    await messages.put(None)

        running = asyncio.create_task(run(), name=f"own request {path}")
        try:
            head = await messages.get()
            if head is None:
                running.result()
                raise RuntimeError(f"{path} was not answered")
            yield Reply(head, scope["state"], _body(messages), self._clock() - self._began)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _body(messages: "asyncio.Queue[Message | None]") -> AsyncGenerator[bytes, None]:
    while (message := await messages.get()) is not None:
        if message["type"] == "http.response.body":
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return


def json_post(
    path: str,
    length: int,
    headers: Mapping[bytes, bytes],
    state: Mapping[str, Any] = NOTHING,
    come_from: Mapping[str, Any] = NOTHING,
) -> Scope:
    """The scope of a POST of JSON, `length` bytes, that the application is asked in this process.

    `come_from`: the scope of the connection whose addresses it has; without it the client is unknown.
    """
    own = {b"content-type": b"application/json", b"content-length": str(length).encode()}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*headers.items(), *own.items()],
        "client": come_from.get("client"),
        "server": come_from.get("server", ("localhost", 80)),
        "state": dict(state),
    }
