"""How a service stops and loses no call: it leaves its door, lets its calls go on, and hands over the rest.

A call that ends with UNAVAILABLE is handed over: its caller has all that it takes to make it again, and the
next process at the door goes on with it. No attempt is counted against such a call.
"""

import asyncio
from collections.abc import Callable, Sequence

from proto.rpc import Lease, Node, Server
from proto.rpc.errors import BusAway

LOOK_SECONDS = 0.5
"""Time between two looks at the other processes."""

Enough = Callable[[Sequence[Lease]], bool]
"""Whether calls need not go on here. Gets the leases of the other processes at the same door."""


def asked_to_stop() -> None:
    """To be called in a task that was cancelled, and thereby asked to stop, before it lets work go on.

    From then on it may use `asyncio.timeout`. Up to Python 3.11.2, which Debian 12 has, a timeout in a task
    that was ever cancelled before raises CancelledError when it runs out, and nothing would go on.
    """
    if task := asyncio.current_task():
        task.uncancel()


def never(peers: Sequence[Lease]) -> bool:
    """Let calls go on as long as they may."""
    return False


async def drain(node: Node, server: Server, seconds: float, enough: Enough = never) -> None:
    """Take no more calls, and return when none is left.

    Calls that run go on for `seconds`, or until `enough` says so, which is asked every half second. Then they
    end with UNAVAILABLE. They also do when this is cancelled.
    """
    asked_to_stop()
    stopping: asyncio.Future[None] | None = None
    try:
        await node.update(stopping=True)
        stopping = asyncio.ensure_future(server.stop(seconds))
        while not stopping.done() and not enough(await peers(node, server.door)):
            await asyncio.wait([stopping], timeout=LOOK_SECONDS)
    finally:
        await server.stop(None)
        if stopping is not None:
            await stopping


async def peers(node: Node, door: str) -> list[Lease]:
    """The other processes at a door; none while they cannot be seen."""
    try:
        leases = await node.leases()
    except BusAway:
        return []
    return [lease for lease in leases if door in lease.doors and lease.process_id != node.id]
