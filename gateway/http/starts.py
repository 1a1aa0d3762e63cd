"""Requests that have come begin a few at a time, tenants in turns.

A request takes about a millisecond until it is on its way. If a thousand come at once, a turn of the event
loop that begins them all takes a second. Everything else waits for it: streams, health checks, and five times
over a request of another tenant, whose way takes as many turns.
"""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from ops.runtime.turns import Queues

AT_ONCE = 8
"""Requests that begin in one turn of the event loop."""


class Starts:
    """Whose request begins next."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = self._left = at_once
        self._queues = Queues()
        self._next: asyncio.Handle | None = None

    async def turn(self, tenant: str) -> None:
        """Return when a request of the tenant's may begin."""
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.call_soon(self._in_turn, loop)
        if self._left and not self._queues:
            self._left -= 1
            return
        await self._queues.join(tenant)

    def _in_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """The event loop has had a turn."""
        self._left, self._next = self._at_once, None
        while self._left and self._queues.pass_on():
            self._left -= 1
        if self._left < self._at_once:
            self._next = loop.call_soon(self._in_turn, loop)


class BeginsInTurns:
    """Middleware: a request whose caller is known begins when its tenant has a turn."""

    def __init__(self, app: ASGIApp, starts: Starts) -> None:
        self._app, self._starts = app, starts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (caller := scope.get("state", {}).get("caller")) is not None:
            await self._starts.turn(caller.tenant)
        await self._app(scope, receive, send)
