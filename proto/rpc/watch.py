"""Watching over the other ends of calls, while there are calls.

Both ways: a call whose server has died ends at its client, and a call whose client has died ends at its
server. A call without `wait_for_ready` ends if no process serves its door.
"""

import asyncio
import contextlib
from typing import Protocol

from proto.rpc.bus import Link
from proto.rpc.errors import BusAway
from proto.rpc.lease import LeaseKeeper, LeaseReader, killed_note

WATCH_SECONDS = 0.5


class Watched(Protocol):
    """What the watch looks at, and what it informs."""

    def peers(self) -> set[str]:
        """Processes at the other ends of calls."""
        ...

    def impatient(self) -> bool:
        """Whether a call without `wait_for_ready` is still at its door."""
        ...

    def waiting(self) -> bool:
        """Whether a call is still at its door."""
        ...

    async def probe(self) -> None:
        """Ask the peers of calls that were silent since the last probe whether they still have them.

        Raises `BusAway`."""

    async def caught_up(self) -> None:
        """Return once all that is in the inbox now has been read. Raises `BusAway`."""

    def peer_is(self, process_id: str, epoch: int | None, killed: bool = False) -> None:
        """A peer's lease says `epoch`, which ends calls of older ones; None: it has none.

        `killed`: from outside, as its launcher saw."""

    def served(self, doors: set[str]) -> None:
        """The doors that a living process serves."""


class Watch:
    """Looks at leases every half second while there are calls, or at once when it is asked to."""

    def __init__(
        self, link: Link, seconds: tuple[float, float], keeper: LeaseKeeper, watched: Watched
    ) -> None:
        """`seconds`: of a lease, and those without a frame after which one asks about a call."""
        self._link, self._keeper, self._watched = link, keeper, watched
        lease_seconds, self._quiet_seconds = seconds
        self._period = min(WATCH_SECONDS, lease_seconds / 3)
        self._probe_at = 0.0
        self._wanted = asyncio.Event()
        self._hurry = asyncio.Event()
        self._reader = LeaseReader()

    def want(self) -> None:
        """There are calls."""
        self._wanted.set()

    def hurry(self) -> None:
        """There is a call without `wait_for_ready` for whose door no server is known."""
        self._wanted.set()
        self._hurry.set()

    async def run(self) -> None:
        """Watch, for ever."""
        while True:
            await self._wanted.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period):
                    await self._hurry.wait()
            self._hurry.clear()
            peers = self._watched.peers()
            impatient = self._watched.impatient()
            if not peers and not impatient and not self._watched.waiting():
                self._wanted.clear()
                continue
            try:
                if peers or impatient:
                    await self._look(peers, impatient)
                await self._probe()
            except BusAway as error:
                self._keeper.away(error)

    async def _probe(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._probe_at and not self._keeper.is_away:
            self._probe_at = now + self._quiet_seconds
            await self._watched.probe()

    async def _look(self, peers: set[str], impatient: bool) -> None:
        leases = self._reader.read(await self._link.leases(None if impatient else sorted(peers)))
        trustworthy = self._keeper.trustworthy
        if impatient or not peers <= leases.keys():
            # What a process sent before it died still counts.
            await self._watched.caught_up()
        gone = sorted(peers - leases.keys()) if trustworthy else []
        notes = await self._link.leases([killed_note(one) for one in gone]) if gone else {}
        for process_id in peers & leases.keys():
            self._watched.peer_is(process_id, leases[process_id].epoch)
        for process_id in gone:
            self._watched.peer_is(process_id, None, killed_note(process_id) in notes)
        if impatient and trustworthy:
            self._watched.served({door for lease in leases.values() for door in lease.doors})
