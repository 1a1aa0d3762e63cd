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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from proto.rpc.bus import Link
from proto.rpc.errors import BusAway
from proto.rpc.outbox import RETRY_SECONDS
from proto.rpc.protocol import FIRST, PROTOCOL
from proto.rpc.recent import Recent

log = logging.getLogger(__name__)

RENEWALS = 3
"""Renewals within the time of a lease."""
MAX_BYTES = 64 * 2**10
"""Of a lease. A longer one is not read: that could take as long as a lease lasts."""


def killed_note(process_id: str) -> str:
    """The place beside a dead process's lease where its launcher notes that it was killed from outside.

    Otherwise a call that it was serving may be the reason for its death; see `resume.py`.
    """
    return f"{process_id}:killed"


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
    protocol: int = FIRST
    """Version of the protocol that it speaks."""

    def encode(self) -> bytes:
        fields = {name: value for name, value in vars(self).items() if name != "process_id"}
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, process_id: str, value: bytes) -> Self | None:
        """None for a value that is no lease."""
        if len(value) > MAX_BYTES:
            return None
        try:
            fields = json.loads(value)
            return cls(
                process_id=process_id,
                service=str(fields["service"]),
                epoch=int(fields["epoch"]),
                info=dict(fields["info"]),
                host=str(fields.get("host", "")),
                pid=int(fields.get("pid", 0)),
                doors=tuple(map(str, fields.get("doors", ()))),
                protocol=int(fields.get("protocol", FIRST)),
            )
        # JSON may be nested too deeply, or name an infinite epoch: whatever it is, it is no lease.
        except Exception:
            return None


class LeaseReader:
    """Reads leases. One that cannot be read counts as missing, and is logged once."""

    def __init__(self) -> None:
        self._unreadable = Recent()

    def read(self, values: Mapping[str, bytes]) -> dict[str, Lease]:
        """The leases by process id. `values`: of their keys, by process id."""
        leases = {}
        for process_id, value in values.items():
            lease = Lease.decode(process_id, value)
            if lease is not None:
                leases[process_id] = lease
            elif process_id not in self._unreadable:
                self._unreadable.add(process_id)
                log.warning("the lease of %r cannot be read: %r", process_id[:100], value[:100])
        return leases


class LeaseKeeper:
    """Keeps this process's lease, and knows whether a missing lease means that its process is dead."""

    def __init__(
        self,
        link: Link,
        process_id: str,
        service: str,
        seconds: float,
        fence: Callable[[], None],
        protocol: int = PROTOCOL,
    ) -> None:
        """`fence` drops all calls."""
        self.epoch = 1
        self.info: dict[str, Any] = {}
        self.doors: list[str] = []
        self._protocol = protocol
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
        self._is_away = self._ended = False
        self._fenced = False
        """Whether the lease was lost and is not taken anew."""
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

    def end(self) -> None:
        """The process ends: `renew` does nothing from now on."""
        self._ended = True

    async def renew(self) -> None:
        """Renew the lease, with its info as it is now; fence once if it was lost. Raises `BusAway`."""
        async with self._writing:
            if self._ended:
                return
            asked = time.monotonic()
            try:
                if not await self._link.renew_lease(self._value(), self._seconds):
                    if not self._fenced:
                        log.warning("lost the lease: all calls are dropped")
                        self._fence()
                        self.epoch += 1
                        self._fenced = True
                    await self._link.take_lease(self._value(), self._seconds)
                self._fenced = False
                self._held_until = asked + self._seconds
            except BusAway as error:
                self.away(error)
                raise

    async def keep(self, before: Callable[[], Any], renewed: Callable[[], Any]) -> None:
        """Renew for ever, and await `before()` and `renewed()` each time."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds / RENEWALS):
                    await self._hurry.wait()
            asked = time.monotonic()
            try:
                with contextlib.suppress(BusAway):  # the renewal fails as well, or takes a new lease
                    await before()
                await self.renew()
                refused: BusAway | None = None
                try:
                    await self._link.enlist()
                except BusAway as error:  # as by a full bus, which `renewed` does not wait for
                    refused = error
                await renewed()
                if refused is not None:
                    raise refused
                self._may_be_back(asked)
            except BusAway as error:
                self.away(error)
            if self._is_away:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._hurry.clear()

    def _may_be_back(self, asked: float) -> None:
        """The bus has done all that was asked from then on."""
        # It is back when nothing has failed for a while, whoever tried it.
        if self._is_away and asked - self._failed > 2 * RETRY_SECONDS:
            log.warning("the bus is back")
            self._is_away = False
            self._trusted_from = self._loop.time() + self._seconds

    def _value(self) -> bytes:
        return Lease(
            process_id=self._id,
            service=self._service,
            epoch=self.epoch,
            info=self.info,
            host=socket.gethostname(),
            pid=os.getpid(),
            doors=tuple(self.doors),
            protocol=self._protocol,
        ).encode()
