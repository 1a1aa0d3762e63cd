"""Leases: how processes know which other processes live.

Each process renews the key `alive:<process-id>` well before it runs out. One that has lost it must assume
that its peers have given its calls up, and fences itself: it drops all its calls, raises its epoch, and
only then takes the lease anew.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from proto.rpc.bus import Link
from proto.rpc.errors import BusAway
from proto.rpc.outbox import RETRY_SECONDS

log = logging.getLogger(__name__)

RENEWALS = 3
"""Renewals within the time of a lease."""


@dataclass(frozen=True)
class Lease:
    """What a living process publishes about itself."""

    process_id: str
    service: str
    epoch: int
    info: dict[str, Any] = field(default_factory=dict)
    host: str = ""
    pid: int = 0
    doors: tuple[str, ...] = ()
    """The front doors at which it takes calls."""

    def encode(self) -> bytes:
        fields = {name: value for name, value in vars(self).items() if name != "process_id"}
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, process_id: str, value: bytes) -> Self | None:
        """None for a value that is no lease."""
        try:
            fields = json.loads(value)
            return cls(
                process_id=process_id,
                service=str(fields["service"]),
                epoch=int(fields["epoch"]),
                info=dict(fields["info"]),
                host=str(fields.get("host", "")),
                pid=int(fields.get("pid", 0)),
                doors=tuple(fields.get("doors", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


class LeaseKeeper:
    """Keeps this process's lease, and knows whether a missing lease means that its process is dead."""

    def __init__(
        self, link: Link, process_id: str, service: str, seconds: float, fence: Callable[[], None]
    ) -> None:
        """`fence` drops all calls."""
        self.epoch = 1
        self.info: dict[str, Any] = {}
        self.doors: list[str] = []
        self._link, self._id, self._service, self._seconds, self._fence = (
            link,
            process_id,
            service,
            seconds,
            fence,
        )
        self._loop = asyncio.get_running_loop()
        self._writing = asyncio.Lock()
        self._hurry = asyncio.Event()
        self._is_away = False
        self._failed = 0.0
        self._trusted_from = 0.0
        self._held_until = 0.0

    @property
    def trustworthy(self) -> bool:
        """Whether a process without a lease is dead: all have had time to renew since the bus was away."""
        return not self._is_away and self._loop.time() >= self._trusted_from

    @property
    def is_away(self) -> bool:
        return self._is_away

    @property
    def held(self) -> bool:
        """Whether the lease cannot have run out: the process may have been stopped since it was renewed."""
        return time.monotonic() < self._held_until

    def away(self, error: BusAway) -> None:
        """The bus could not be reached: see as soon as possible whether it is back."""
        if not self._is_away:
            log.warning("the bus is away: %s", error)
            self._is_away = True
        self._failed = time.monotonic()
        self._hurry.set()

    async def take(self) -> None:
        """Take the lease for the first time. Raises `BusAway`."""
        asked = time.monotonic()
        await self._link.take_lease(self._value(), self._seconds)
        self._held_until = asked + self._seconds
        await self._link.enlist()

    async def renew(self) -> None:
        """Renew the lease, with its info as it is now; fence first if it was lost. Raises `BusAway`."""
        async with self._writing:
            asked = time.monotonic()
            try:
                if not await self._link.renew_lease(self._value(), self._seconds):
                    log.warning("lost the lease: all calls are dropped")
                    self._fence()
                    self.epoch += 1
                    await self._link.take_lease(self._value(), self._seconds)
                self._held_until = asked + self._seconds
                await self._link.enlist()
            except BusAway as error:
                self.away(error)
                raise
            # It is back when nothing has failed for a while, whoever tried it.
            if self._is_away and asked - self._failed > 2 * RETRY_SECONDS:
                log.warning("the bus is back")
                self._is_away = False
                self._trusted_from = self._loop.time() + self._seconds

    async def keep(self, before: Callable[[], Any], renewed: Callable[[], Any]) -> None:
        """Renew for ever, and await `before()` and `renewed()` each time."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds / RENEWALS):
                    await self._hurry.wait()
            try:
                await before()
                await self.renew()
                await renewed()
            except BusAway as error:
                self.away(error)
            if self._is_away:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._hurry.clear()

    def _value(self) -> bytes:
        return Lease(
            process_id=self._id,
            service=self._service,
            epoch=self.epoch,
            info=self.info,
            host=socket.gethostname(),
            pid=os.getpid(),
            doors=tuple(self.doors),
        ).encode()
