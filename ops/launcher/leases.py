"""The leases in a deployment's Redis: which processes live; and how to end the lease of a dead one.

A process's lease is the key `<prefix>alive:<process-id>`. `proto.rpc.lease` writes and renews it, and keeps
the process in the set `<prefix>processes`.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from ops.runtime.errors import LaunchError
from proto.rpc import BusAway, Lease
from proto.rpc.lease import killed_note
from proto.rpc.line import Line

DENIED = ("NOAUTH", "WRONGPASS", "NOPERM")
"""Beginnings of what Redis answers to a user without a password, with a wrong one, or without a right."""
NOTE_SECONDS = 600
"""Seconds for which the peers of a process can find out that it was killed."""


class Leases:
    """Reads and ends the leases of one deployment."""

    def __init__(self, url: str, prefix: str) -> None:
        self._prefix = prefix
        self._keys = f"{prefix}alive:"
        self._everyone = f"{prefix}processes"
        self._line = Line(url)

    async def reachable(self) -> None:
        """Raise `LaunchError` if the Redis does not answer, or its user may not read our keys."""
        try:
            await self._line.execute(("EXISTS", self._everyone))
        except BusAway as error:
            hint = ""
            if any(one in str(error) for one in DENIED):
                hint = (
                    "; QUIRE_REDIS_URL must name a user, with its password, that may use the keys "
                    f"{self._prefix}* (docs/operate.md, Redis)"
                )
            raise LaunchError(f"{error}{hint}") from None

    async def answering(self, timeout: float = 10.0) -> None:
        """Return once the Redis, just started, answers; `LaunchError` if it takes too long. Seconds."""
        async with _deadline(timeout, "Redis does not answer"):
            while True:
                with contextlib.suppress(LaunchError):
                    return await self.reachable()
                await asyncio.sleep(0.02)

    async def holders(self) -> list[Lease]:
        """All processes that hold a lease, by service and id. Raises `BusAway`."""
        (members,) = await self._line.execute(("SMEMBERS", self._everyone))
        ids = sorted({one.decode(errors="replace") for one in members if isinstance(one, bytes)})
        (values,) = await self._line.execute(("MGET", *(self._keys + one for one in ids))) if ids else ([],)
        # None: it has run out, or a key of this name is something else.
        pairs = [(one, value) for one, value in zip(ids, values, strict=True) if isinstance(value, bytes)]
        found = [lease for one, value in pairs if (lease := Lease.decode(one, value)) is not None]
        return sorted(found, key=lambda lease: (lease.service, lease.process_id))

    async def bury(self, pid: int, killed: bool = False) -> None:
        """End the lease of a process of this machine that has died, so that its peers know at once.

        `killed`: from outside, which is noted for the peers, so that they suspect no request of theirs.
        Without this they know as soon as the lease runs out; a Redis that is away is no error here.
        """
        with contextlib.suppress(BusAway):
            for holder in await self.holders():
                if holder.pid == pid and holder.host == socket.gethostname():
                    if killed:
                        note = f"{self._keys}{killed_note(holder.process_id)}"
                        await self._line.execute(("SET", note, b"", "EX", NOTE_SECONDS))
                    await self._line.execute(("DEL", f"{self._keys}{holder.process_id}"))

    async def aclose(self) -> None:
        self._line.close()


@contextlib.asynccontextmanager
async def _deadline(seconds: float, message: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise LaunchError(f"{message} after {seconds:g} s") from None
