"""Heartbeats of calls: nobody waits for ever for a frame that was lost.

    client ──PROBE──▶ server      knows the call and has all frames: nothing
                                  does not know it: GONE, and the call ends with UNAVAILABLE
                                  lacks frames: STATUS, and the call ends with UNAVAILABLE
    client ◀──PROBE── server      the same the other way round; for a call that it does not know: CANCEL
    client ─────────▶ door        a call that nobody has accepted: is its opening entry still there?

Every few seconds a process asks about the calls of which it has heard nothing since it last asked. All its
questions to another process are one entry. There is no answer about a call that is in order. Silence is no
danger: the end of a process shows by its lease, and after a probe that is lost comes the next one.
"""

from collections.abc import Awaitable, Callable, Iterable

from proto.rpc.bus import Link
from proto.rpc.client_call import ClientCall
from proto.rpc.server_call import ServerCall

LOOKS = 8
"""Calls at one door that are looked for at a time. The oldest suffice: calls are taken in their order, and a
lost one becomes the oldest."""


async def probe(
    link: Link,
    calling: Iterable[ClientCall],
    serving: Iterable[ServerCall],
    caught_up: Callable[[], Awaitable[None]],
) -> None:
    """Ask about quiet calls, and end those that have vanished from their doors. Raises `BusAway`.

    `caught_up` returns once all that is in the inbox now has been read.
    """
    for served in list(serving):
        if served.inflow.quiet():
            served.probe()
    at_doors: dict[str, list[ClientCall]] = {}
    for call in list(calling):
        if not call.inflow.quiet():
            continue
        if call.server is not None:
            call.probe()
        elif call.entry_id is not None:
            at_doors.setdefault(call.door, []).append(call)
    for door, calls in at_doors.items():
        for start in range(0, len(calls), LOOKS):
            if not await _look(link, door, calls[start : start + LOOKS], caught_up):
                break


async def _look(
    link: Link, door: str, calls: list[ClientCall], caught_up: Callable[[], Awaitable[None]]
) -> bool:
    """Whether calls had gone from the door."""
    missing = await link.missing(door, [call.entry_id for call in calls if call.entry_id])
    # A call whose entry's id is not known may still be accepted. Then its server is told to cancel.
    vanished = [call for call in calls if not call.entry_id or call.entry_id in missing]
    if vanished:
        # An entry never leaves its door before ACCEPT is written to the inbox.
        await caught_up()
        for call in vanished:
            call.vanished()
    return bool(vanished)
