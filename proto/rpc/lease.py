"""Leases: how processes know of each other's life and death.

Each process renews the key `alive:<process-id>` well before it runs out. One that finds its lease gone
has to assume that its peers have given its calls up, and fences itself: it drops all its calls, raises
its epoch, and only then takes the lease anew.
"""

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from proto.rpc.bus import Link
from proto.rpc.errors import BusAway

log = logging.getLogger(__name__)

RENEWALS = 3
"""Renewals within the time of a lease."""
WATCH_SECONDS = 0.5


@dataclass(frozen=True)
class Lease:
    """What a living process says of itself."""

    process_id: str
    service: str
    epoch: int
    info: dict[str, Any] = field(default_factory=dict)
    host: str = ""
    pid: int = 0

    def encode(self) -> bytes:
        fields = {
            "service": self.service,
            "epoch": self.epoch,
            "host": self.host,
            "pid": self.pid,
            "info": self.info,
        }
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, process_id: str, value: bytes) -> "Lease | None":
        """None for a value that is not a lease."""
        try:
            fields = json.loads(value)
            return cls(
                process_id,
                fields["service"],
                fields["epoch"],
                dict(fields["info"]),
                fields["host"],
                fields["pid"],
            )
        except (ValueError, KeyError, TypeError):
            return None


class LeaseKeeper:
    """Keeps one process's lease."""

    def __init__(
        self, link: Link, process_id: str, service: str, seconds: float, fence: Callable[[], None]
    ) -> None:
        """`fence` drops all calls; the epoch is raised right after."""
        self.epoch = 1
        self.info: dict[str, Any] = {}
        self._link, self._id, self._service, self._seconds, self._fence = (
            link,
            process_id,
            service,
            seconds,
            fence,
        )
        self._writing = asyncio.Lock()

    async def acquire(self) -> None:
        """Take the lease for the first time. Raises `BusAway`."""
        await self._link.hold(self._value(), self._seconds, anew=True)

    async def renew(self) -> None:
        """Renew the lease, with its info as it is now; fence first if it was lost. Raises `BusAway`."""
        async with self._writing:
            if await self._link.hold(self._value(), self._seconds, anew=False):
                return
            log.warning("lost the lease: all calls are dropped")
            self._fence()
            self.epoch += 1
            await self._link.hold(self._value(), self._seconds, anew=True)

    async def keep(self, each_time: Callable[[], None]) -> None:
        """Renew again and again; `each_time` after a renewal."""
        while True:
            await asyncio.sleep(self._seconds / RENEWALS)
            try:
                await self.renew()
            except BusAway:
                continue
            each_time()

    def _value(self) -> bytes:
        return Lease(
            self._id, self._service, self.epoch, self.info, socket.gethostname(), os.getpid()
        ).encode()


class Watcher:
    """Watches over the peers of the calls that are under way, and over nothing while there are none."""

    def __init__(self, link: Link, lease_seconds: float, lost: Callable[[str, int | None], None]) -> None:
        """`lost(process_id, epoch)`: the peer is gone (None), or lives in another epoch than some call's."""
        self._link = link
        self._lease_seconds = lease_seconds
        self._lost = lost
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """There are calls to watch over."""
        self._wanted.set()

    async def watch(self, peers: Callable[[], Sequence[str]]) -> None:
        """`peers()`: the processes at the other ends of calls."""
        period = min(WATCH_SECONDS, self._lease_seconds / 4)
        doubtful_until = 0.0
        while True:
            await self._wanted.wait()
            await asyncio.sleep(period)
            ids = peers()
            if not ids:
                self._wanted.clear()
                continue
            try:
                values = await self._link.holders(ids)
            except BusAway:
                # Nobody could renew while Redis was away: give everyone the time to.
                doubtful_until = time.monotonic() + self._lease_seconds
                continue
            for process_id, value in zip(ids, values, strict=True):
                lease = Lease.decode(process_id, value) if value is not None else None
                if lease is not None:
                    self._lost(process_id, lease.epoch)
                elif time.monotonic() >= doubtful_until:
                    self._lost(process_id, None)
