"""The leases in a deployment's Redis: which processes live; and how to end the lease of a dead one.

A process's lease is the key `<prefix>alive:<process-id>`; `proto.rpc.lease` writes and renews it.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import redis.asyncio
from redis.exceptions import RedisError

from ops.runtime.errors import LaunchError
from proto.rpc import Lease

_TIMEOUT = 3.0


class Leases:
    """Reads and ends the leases of one deployment."""

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._keys = f"{prefix}alive:"
        self._redis = redis.asyncio.Redis.from_url(
            url, socket_timeout=_TIMEOUT, socket_connect_timeout=_TIMEOUT
        )

    async def reachable(self) -> None:
        """Raise `LaunchError` if the Redis does not answer."""
        try:
            await self._redis.ping()
        except (RedisError, OSError) as error:
            raise LaunchError(f"Redis at {without_password(self._url)} is unreachable: {error}") from None

    async def answering(self, timeout: float = 10.0) -> None:
        """Return once the Redis, just started, answers; `LaunchError` if it takes too long. Seconds."""
        async with _deadline(timeout, f"Redis at {self._url} does not answer"):
            while True:
                with contextlib.suppress(LaunchError):
                    return await self.reachable()
                await asyncio.sleep(0.02)

    async def holders(self) -> list[Lease]:
        """All processes that hold a lease, by service and id."""
        found: list[Lease] = []
        async for key in self._redis.scan_iter(f"{self._keys}*", count=1000):
            value = await self._redis.get(key)
            # None: it has run out meanwhile.
            if isinstance(value, bytes) and (
                lease := Lease.decode(key.decode().removeprefix(self._keys), value)
            ):
                found.append(lease)
        return sorted(found, key=lambda lease: (lease.service, lease.process_id))

    async def bury(self, pid: int) -> None:
        """End the lease of a process of this machine that has died, so that its peers know at once.

        Without it they know as soon as the lease runs out; a Redis that is away is no error here.
        """
        with contextlib.suppress(RedisError, OSError):
            for holder in await self.holders():
                if holder.pid == pid and holder.host == socket.gethostname():
                    await self._redis.delete(f"{self._keys}{holder.process_id}")

    async def aclose(self) -> None:
        await self._redis.aclose()


def without_password(url: str) -> str:
    """The URL without its password, so that it can be shown."""
    password = urlsplit(url).password
    return url.replace(f":{password}@", ":***@") if password else url


@contextlib.asynccontextmanager
async def _deadline(seconds: float, message: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise LaunchError(f"{message} after {seconds:g} s") from None
