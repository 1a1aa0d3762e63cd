"""A lock that tenants take in turns: one that asks for much does not make the others wait for all of it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """One at a time: tenant after tenant, and within a tenant in order of arrival."""

    def __init__(self) -> None:
        self._taken = False
        self._last = ""
        """The tenant that had the newest turn."""
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """Those that wait, by tenant. The order of tenants is that of their turns."""

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn of the tenant's, and have it."""
        if self._taken:
            await self._wait(tenant)
        self._taken, self._last = True, tenant
        try:
            yield
        finally:
            self._next()

    async def _wait(self, tenant: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had got its turn
                self._next()
            raise

    def _next(self) -> None:
        """Give the turn to the first that still waits, another tenant's before the last one's; to nobody if
        none waits."""
        if (more := self._queues.pop(self._last, None)) is not None:
            self._queues[self._last] = more
        while self._queues:
            tenant = next(iter(self._queues))
            queue = self._queues.pop(tenant)
            turn = queue.popleft()
            if queue:
                self._queues[tenant] = queue  # behind the other tenants
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False
