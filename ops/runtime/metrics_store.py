"""Snapshots of the processes' metrics in Redis, where the gateway finds them.

The key `<prefix>metrics:<process>` has the newest one of a process. It runs out soon after the process has
ended.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence

from ops.runtime import metric_names as names
from ops.runtime.metrics import METRICS, cpu_seconds, resident_bytes
from proto.rpc import BusAway, Node, Server
from proto.rpc.line import Line

WRITE_SECONDS = 5.0
"""Time between two snapshots of a process."""
KEPT_SECONDS = 20
LOOK_SECONDS = 2.0
"""Time that reading those of all processes may take."""


class MetricsStore:
    """The snapshots of one deployment. Methods raise `BusAway` if Redis cannot be reached."""

    def __init__(self, line: Line, prefix: str) -> None:
        self._line = line
        self._prefix = f"{prefix}metrics:"

    async def write(self, process_id: str, snapshot: bytes) -> None:
        """Replace the snapshot of a process."""
        await self._line.execute(("SET", self._prefix + process_id, snapshot, "EX", KEPT_SECONDS))

    async def read(self, process_ids: Sequence[str]) -> dict[str, bytes]:
        """The snapshots of those processes that have one."""
        if not process_ids:
            return {}
        (found,) = await self._line.execute(("MGET", *(self._prefix + one for one in process_ids)))
        pairs = zip(process_ids, found, strict=True)
        return {process_id: snapshot for process_id, snapshot in pairs if snapshot is not None}

    async def fullness(self) -> float:
        """See `Line.fullness`."""
        return await self._line.fullness()

    def close(self) -> None:
        self._line.close()


async def publish(node: Node, store: MetricsStore) -> None:
    """Leave a snapshot of this process's metrics in Redis every few seconds, until cancelled."""
    METRICS.gauge(names.START_TIME, node.service).set(time.time())
    METRICS.read_by(lambda: _read_process(node))
    node.measure_wait = _measure_wait
    try:
        while True:
            with contextlib.suppress(BusAway):  # the next one will do
                await _look_at_doors(node)
            if node.service == "gateway":
                try:
                    METRICS.gauge(names.REDIS_MEMORY).set(await store.fullness())
                except BusAway:  # it may also refuse to say
                    METRICS.forget(names.REDIS_MEMORY)
            METRICS.published = METRICS.snapshot()
            try:
                await store.write(node.id, METRICS.published)
                taken = True
            except BusAway:
                taken = False
            if node.service == "gateway":
                METRICS.gauge(names.REDIS_UP).set(taken)
            await asyncio.sleep(WRITE_SECONDS)
    finally:
        store.close()


async def read_all(node: Node, store: MetricsStore) -> dict[str, bytes]:
    """The snapshots of all live processes; of this one, a gateway, alone while Redis is full or away."""
    found: dict[str, bytes] = {}
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            found = await store.read([lease.process_id for lease in await node.leases()])
    except (BusAway, TimeoutError):
        METRICS.gauge(names.REDIS_UP).set(0)
        METRICS.published = METRICS.snapshot()
    # As long as Redis can be read it is the one that others find there. Counters would go back after a newer
    # one.
    return {**found, node.id: METRICS.published}


def _read_process(node: Node) -> None:
    METRICS.counter(names.CPU).value = cpu_seconds()
    METRICS.gauge(names.RESIDENT).set(resident_bytes())
    METRICS.gauge(names.SERVING).set(len(node.serving))
    METRICS.counter(names.LEASES_LOST).value = node.epoch - 1
    METRICS.counter(names.DEAD_LETTERS).value = node.outbox.buried


def _measure_wait(server: Server, seconds: float) -> None:
    METRICS.histogram(names.DOOR_WAIT, server.pool, server.service).observe(seconds)


async def _look_at_doors(node: Node) -> None:
    """Set what lies at this process's doors. Raises `BusAway`."""
    for server, state in await node.look():
        of = server.pool, server.service
        METRICS.gauge(names.DOOR_CALLS, *of, "waiting").set(state.waiting)
        METRICS.gauge(names.DOOR_CALLS, *of, "pending").set(state.pending)
        METRICS.gauge(names.DOOR_OLDEST, *of).set(state.oldest_seconds)
