"""A gateway that is asked to stop: answers under way go on, and new requests are told to go elsewhere.

While it drains, health checks are answered, and every connection ends with its next response. If another
gateway listens at the same address, which new connections reach, a request that still comes here is served:
its connection was there before. Otherwise it is refused with 503.
"""

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Stopping
from gateway.http.error_shape import refusal

HEALTH = ("/health/", "/v2/health/")
"""Paths that begin with one of these are always answered."""


class Drain:
    """The requests under way, and whether the gateway takes new ones."""

    def __init__(self) -> None:
        self.begun = False
        """The gateway has been asked to stop."""
        self.replaced = False
        """Another gateway listens at the same address."""
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """A request has come."""
        self._under_way += 1
        self._idle.clear()

    def leave(self) -> None:
        """A request has been answered."""
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    async def idle(self, seconds: float) -> bool:
        """Wait until no request is under way; False if that takes longer than `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class Draining:
    """Middleware: counts the requests under way, and refuses new ones while the gateway drains."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(HEALTH):
            await self._app(scope, receive, send)
            return
        drain = self._drain

        async def send_last(message: Message) -> None:
            if drain.begun and message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        if drain.begun and not drain.replaced:
            await refusal(Stopping(), scope)(scope, receive, send_last)
            return
        drain.enter()
        try:
            await self._app(scope, receive, send_last)
        finally:
            drain.leave()
