"""A lock that tenants take in turns: one that asks for much does not make the others wait for all of it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Queues(dict[str, deque[asyncio.Future[None]]]):
    """Those that wait, by tenant. The order of tenants is that of their turns."""

    def join(self, tenant: str) -> asyncio.Future[None]:
        """Wait behind others of the tenant's. The future is done when it is one's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.setdefault(tenant, deque()).append(turn)
        return turn

    def pass_on(self) -> bool:
        """Give the turn to the first that still waits. False: nobody does."""
        while self:
            tenant = next(iter(self))
            queue = self.pop(tenant)
            turn = queue.popleft()
            if queue:
                self[tenant] = queue  # behind the other tenants
            if not turn.done():
                turn.set_result(None)
                return True
        return False


class Turns:
    """One at a time: tenant after tenant, and within a tenant in order of arrival."""

    def __init__(self) -> None:
        self._taken = False
        self._last = ""
        """The tenant that had the newest turn."""
        self._queues = Queues()

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
        turn = self._queues.join(tenant)
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
        self._taken = self._queues.pass_on()
