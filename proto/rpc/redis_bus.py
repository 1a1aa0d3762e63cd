"""The bus over Redis Streams.

    control     batches of writes, leases, claims, questions
    inbox       one blocking XREAD at a time
    door        one blocking XREADGROUP at a time, for each door

Every one has a connection of its own, for a blocked read holds its connection up. A read blocks for
`BLOCK_SECONDS` and gets `REPLY_SECONDS` more to answer before its connection counts as dead. A
connection that was lost is opened again by the next use.

A Redis that restarts, or a replica that takes its place, may lack what was acknowledged, though keys and
leases are there. So a process uses a Redis only after it has taken a lease in that Redis's history: on a
connection to another history everything but the lease fails with `BusAway`, and the lease counts as lost:
whichever of its connections leads there.

Keys, besides the streams: `alive:<process-id>` the lease, `processes` the ids of those that have taken
one, `sent:<process-id>` the number of the last batch that opened calls.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hiredis

from proto.rpc.bus import (
    GIVEN_BACK,
    MAX_DELIVERIES,
    Batch,
    DoorState,
    Received,
    Refused,
    inbox_of,
)
from proto.rpc.errors import BusAway
from proto.rpc.line import REPLY_SECONDS, Line
from proto.rpc.place import TAGGED
from proto.rpc.redis_entries import FIELD, GROUP, commands_of, entries_of, entry_of, is_here, text_members
from proto.rpc.redis_scripts import ADOPT, GIVE_BACK, JOIN, LOOK, RENEW_LEASE, SETTLE, TAKE_LEASE
from proto.rpc.resp import FINAL, Command, Connection, RedisReplyError, Replies, is_error, passes

log = logging.getLogger(__name__)

EVICTS = "Redis may drop leases and requests when it is full: set its maxmemory-policy to noeviction, not %s"
BLOCK_SECONDS = 5
READ_COUNT = 64
"""Most entries of one read: enough for a burst, few enough that readers of calls keep up in between."""
PENDING_COUNT = 1000
LAST_ID = f"{2**64 - 1}-{2**64 - 1}"
"""The largest id of an entry. None of ours has it."""
DOOR_SECONDS = 86_400
"""Seconds until Redis drops a door to which no call came and whose servers have all gone."""
FORGOTTEN_SECONDS = 600
"""Seconds after its process's last renewal of the lease until Redis drops an inbox."""


class RedisBus:
    """A Redis, and the prefix that this deployment's keys have there."""

    def __init__(self, url: str, prefix: str = "quire:") -> None:
        self.url = url
        self.prefix = prefix

    async def connect(self, process_id: str) -> "RedisLink":
        """Connect one process. Raises `BusAway`."""
        link = RedisLink(self, process_id)
        await link.start()
        return link


class RedisLink:
    """See `proto.rpc.bus.Link`."""

    def __init__(self, bus: RedisBus, process_id: str) -> None:
        self._prefix, self._id = bus.prefix, process_id
        self._inbox_key = bus.prefix + inbox_of(process_id)
        self._lease_key = f"{bus.prefix}alive:{process_id}"
        self._sent_key = f"{bus.prefix}sent:{process_id}"
        self._control = Line(bus.url)
        self._inbox = self._control.another()
        self._doors: dict[str, Line] = {}
        self._everyone = f"{bus.prefix}processes"
        self._ahead = 0.0
        """Seconds by which Redis's clock is ahead of the event loop's."""

    async def start(self) -> None:
        """Raises `BusAway`."""
        connection = await self._control.get()
        if connection.cluster:
            if TAGGED.match(self._prefix) is None:
                raise BusAway(
                    "this Redis is a cluster, where all keys of a deployment have to lie on one server: "
                    f"QUIRE_STREAM_PREFIX={self._prefix} has no hash tag, as in {{one}}:"
                )
            await self._control.execute(("GET", self._sent_key))  # to be led to that server
        if policy := await self._control.evicts():
            log.warning(EVICTS, policy)

    # --- writing ---

    async def publish(self, batch: Batch, again: bool = False) -> Sequence[str | None]:
        """See `Link.publish`."""
        if batch.opens or (batch.entries and batch.settled):
            return await self._together(batch, again)
        connection = self._control.here() or await self._control.get()
        replies = await connection.send(commands_of(batch, self._prefix))
        if any(refused := list(map(passes, replies))):
            entries, settled = len(batch.entries), len(batch.entries) + 2 * len(batch.settled)
            rest = Batch(
                batch.number,
                entries=list(itertools.compress(batch.entries, refused)),
                settled=list(itertools.compress(batch.settled, refused[entries:settled:2])),
                letters=list(itertools.compress(batch.letters, refused[settled:])),
            )
            raise self._refused(replies, rest)
        return ()

    async def _together(self, batch: Batch, again: bool) -> Sequence[str | None]:
        """A transaction: the batch's number is there if and only if the calls that it opens are, and no call
        that it settles has left its door when its ACCEPT is not written."""
        if again and batch.opens:
            (sent,) = await self._control.execute(("GET", self._sent_key))
            if sent is not None and int(sent) >= batch.number:
                return ()
        mark: Command = ("SET", self._sent_key, batch.number, "EX", FORGOTTEN_SECONDS)
        begin: list[Command] = [("MULTI",), mark] if batch.opens else [("MULTI",)]
        doors = {door for door, _ in batch.opens}
        kept: list[Command] = [("EXPIRE", self._prefix + door, DOOR_SECONDS) for door in doors]
        commands = dict(enumerate([*commands_of(batch, self._prefix), *kept]))
        ids: list[str | None] = [None] * len(commands)
        connection = self._control.here() or await self._control.get()
        done: Any = None
        while not isinstance(done, list):
            replies = await connection.send([*begin, *commands.values(), ("EXEC",)])
            done, queued = replies[-1], zip(commands, replies[len(begin) : -1], strict=True)
            final = [number for number, reply in queued if is_error(reply) and not passes(reply)]
            if not isinstance(done, list) and not final:
                rest = await self._settle(connection, batch)
                if rest.opens or rest.entries or rest.settled or rest.letters:
                    raise self._refused(replies, rest)
                return ()
            for number in final:  # Redis has done nothing of the transaction: it is sent without them
                del commands[number]
        for number, reply in zip(commands, done[len(begin) - 1 :], strict=True):
            ids[number] = reply.decode() if isinstance(reply, bytes) else None
        end = len(ids) - len(kept)
        return ids[end - len(batch.opens) : end]

    async def _settle(self, connection: Connection, batch: Batch) -> Batch:
        """Settle a batch's calls, which gives its entries room in a full Redis. What is left of it then."""
        if not batch.settled:
            return batch
        arguments: list[bytes | str | int] = [GROUP, FIELD, len(batch.settled)]
        for door, entry in batch.settled:
            arguments += (self._prefix + door, entry)
        for process_id, payload in batch.entries:
            arguments += (self._prefix + inbox_of(process_id), payload)
        (errors,) = await connection.send([("EVAL", SETTLE, 1, self._inbox_key, *arguments)])
        if is_error(errors):
            return batch
        refused = [bool(error) and not error.decode().startswith(FINAL) for error in errors]
        return replace(
            batch,
            settled=list(itertools.compress(batch.settled, refused)),
            entries=list(itertools.compress(batch.entries, refused[len(batch.settled) :])),
        )

    def _refused(self, replies: Replies, rest: Batch) -> Refused:
        reasons = [str(reply) for reply in replies if is_error(reply)]
        reason = next((one for one in reasons if not one.startswith(FINAL)), reasons[0])
        self._control.refused(RedisReplyError(reason))
        return Refused(reason, rest)

    # --- the inbox ---

    async def read(self, after: str) -> Sequence[Received]:
        """See `Link.read`."""
        options = ("COUNT", READ_COUNT, "BLOCK", BLOCK_SECONDS * 1000, "STREAMS", self._inbox_key, after)
        (reply,) = await self._inbox.execute(("XREAD", *options), block_seconds=BLOCK_SECONDS)
        found = entries_of(reply)
        # From the first one that was left for later on they are read again.
        return list(itertools.takewhile(is_here, found))

    async def tail(self) -> str:
        """See `Link.tail`."""
        (newest,) = await self._control.execute(("XREVRANGE", self._inbox_key, "+", "-", "COUNT", 1))
        return newest[0][0].decode() if newest else "0-0"

    async def trim(self, upto: str) -> None:
        """See `Link.trim`."""
        if (
            upto == LAST_ID
        ):  # nothing can be written behind it; the next renewal takes a lease with a new inbox
            await self._control.execute(("DEL", self._inbox_key))
            return
        milliseconds, _, number = upto.partition("-")
        await self._control.execute(("XTRIM", self._inbox_key, "MINID", f"{milliseconds}-{int(number) + 1}"))

    # --- doors ---

    async def join(self, door: str) -> None:
        """See `Link.join`."""
        await self._control.execute(("EVAL", JOIN, 1, self._prefix + door, GROUP))

    async def take(self, door: str, count: int) -> Sequence[Received]:
        """See `Link.take`."""
        line = self._doors.get(door)
        if line is None:
            line = self._doors[door] = self._control.another()
            line.belongs_to(self._control.history)
        options = (
            "COUNT",
            min(count, READ_COUNT),
            "BLOCK",
            BLOCK_SECONDS * 1000,
            "STREAMS",
            self._prefix + door,
            ">",
        )
        try:
            (reply,) = await line.execute(
                ("XREADGROUP", "GROUP", GROUP, self._id, *options), block_seconds=BLOCK_SECONDS
            )
        except RedisReplyError as error:
            if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise
            await self.join(door)
            return ()
        # Those that were left for later are pending, and `pending` reads them.
        return list(filter(is_here, entries_of(reply)))

    async def missing(self, door: str, entry_ids: Sequence[str]) -> set[str]:
        """See `Link.missing`."""
        if not entry_ids:
            return set()
        key = self._prefix + door
        try:
            found = await self._control.execute(*(("XRANGE", key, one, one) for one in entry_ids))
        except RedisReplyError as error:
            if not str(error).startswith("NOPERM"):  # a Redis whose users may not see the next service's door
                raise
            return set()
        return {one for one, entries in zip(entry_ids, found, strict=True) if not entries}

    async def wake(self, door: str) -> None:
        """See `Link.wake`."""
        line = self._doors.get(door)
        if line is not None and line.connection is not None:
            try:
                await self._control.execute(("CLIENT", "UNBLOCK", line.connection.client_id))
            except RedisReplyError as error:
                if not str(error).startswith("NOPERM"):  # else the read ends by itself
                    raise

    async def pending(self, door: str) -> Sequence[Received]:
        """See `Link.pending`."""
        key = self._prefix + door
        # Not by reading them again, which would count as one more delivery of each.
        asked: Command = ("XPENDING", key, GROUP, "-", "+", PENDING_COUNT, self._id)
        try:
            rows, _ = await self._control.execute(asked, ("EXPIRE", key, DOOR_SECONDS))
        except RedisReplyError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            await self.join(door)
            return []
        unread = [Received(row[0].decode(), None, row[3]) for row in rows if row[3] > MAX_DELIVERIES]
        rows = [row for row in rows if row[3] <= MAX_DELIVERIES]
        if not rows:
            return unread
        found = await self._control.execute(*(("XRANGE", key, row[0], row[0]) for row in rows))
        gone = [row[0] for row, entries in zip(rows, found, strict=True) if not entries]
        if gone:  # withdrawn while they were pending: nothing to do any more
            await self._control.execute(("XACK", key, GROUP, *gone))
        rest = [(*entries[0], row[3]) for row, entries in zip(rows, found, strict=True) if entries]
        return [*unread, *filter(is_here, itertools.starmap(entry_of, rest))]

    async def look(self, door: str) -> DoorState:
        """See `Link.look`."""
        (found,) = await self._control.execute(("EVAL", LOOK, 1, self._prefix + door, GROUP))
        length, pending, age = found
        # Calls that were withdrawn while they were pending are still counted as pending.
        return DoorState(max(0, length - pending), pending, age / 1000)

    async def give_back(self, door: str, entry_ids: Sequence[str]) -> None:
        """See `Link.give_back`."""
        arguments = (GROUP, self._id, GIVEN_BACK, *entry_ids)
        await self._control.execute(("EVAL", GIVE_BACK, 1, self._prefix + door, *arguments))

    async def adopt(self, door: str, of_the_dead: bool) -> Received | None:
        """See `Link.adopt`."""
        arguments = (GROUP, self._id, f"{self._prefix}alive:", GIVEN_BACK, int(of_the_dead), MAX_DELIVERIES)
        (found,) = await self._control.execute(("EVAL", ADOPT, 1, self._prefix + door, *arguments))
        adopted = entry_of(*found) if found else None
        return adopted if adopted is not None and is_here(adopted) else None

    # --- leases ---

    def clock(self) -> float:
        """See `Link.clock`."""
        return asyncio.get_running_loop().time() + self._ahead

    def _told(self, time: Sequence[bytes], asked: float) -> None:
        """What the reply to TIME says, seconds and microseconds, that was asked for at `asked` by the event
        loop's clock. The reply may have waited: what is known already stays as far as it can be true."""
        seconds, micros = map(int, time)
        told = seconds + micros / 1e6
        self._ahead = min(max(self._ahead, told - asyncio.get_running_loop().time()), told - asked)

    async def take_lease(self, value: bytes, seconds: float) -> None:
        """See `Link.take_lease`."""
        connection = await self._control.get(any_history=True)
        asked = asyncio.get_running_loop().time()
        time = await self._ask(connection, self._lease(TAKE_LEASE, value, seconds))
        self._told(time, asked)
        for line in (self._control, self._inbox, *self._doors.values()):
            line.belongs_to(connection.history)

    async def renew_lease(self, value: bytes, seconds: float) -> bool:
        """See `Link.renew_lease`."""
        connection = await self._control.get(any_history=True)
        if connection.history != self._control.history:
            # Another server of a cluster is there, and does not have the lease as long as it says who has.
            await self._ask(connection, ("GET", self._sent_key))
            return False
        if any(line.strayed for line in (self._inbox, *self._doors.values())):
            # Connections outlive a change of history, as when a first replica attaches: this one is old.
            self._control.close()
            return False
        asked = asyncio.get_running_loop().time()
        ((held, time),) = await self._control.execute(self._lease(RENEW_LEASE, value, seconds))
        self._told(time, asked)
        return bool(held)

    async def _ask(self, connection: Connection, command: Command) -> Any:
        """Ask in whatever history. Raises `BusAway`."""
        try:
            (reply,) = await connection.execute([command], REPLY_SECONDS)
        except RedisReplyError as error:
            self._control.refused(error)
            raise
        return reply

    def _lease(self, script: str, value: bytes, seconds: float) -> Command:
        inbox_seconds = max(FORGOTTEN_SECONDS, int(10 * seconds))
        milliseconds = max(1, int(seconds * 1000))
        keys = self._lease_key, self._inbox_key, self._everyone
        return "EVAL", script, len(keys), *keys, value, milliseconds, inbox_seconds, self._id

    async def enlist(self) -> None:
        """See `Link.enlist`."""
        await self._control.execute(("SADD", self._everyone, self._id))

    async def leases(self, process_ids: Sequence[str] | None = None) -> dict[str, bytes]:
        """See `Link.leases`."""
        ids = process_ids
        if ids is None:
            (members,) = await self._control.execute(("SMEMBERS", self._everyone))
            ids, strange = text_members(members)
            if strange:  # nobody can take a lease under such a name
                await self._control.execute(("SREM", self._everyone, *strange))
        if not ids:
            return {}
        (values,) = await self._control.execute(("MGET", *(f"{self._prefix}alive:{one}" for one in ids)))
        # b"": it is too large to be read, and no lease.
        values = [b"" if isinstance(value, hiredis.ReplyError) else value for value in values]
        found = {one: value for one, value in zip(ids, values, strict=True) if value is not None}
        if process_ids is None and len(found) < len(ids):
            # A process that lives after all adds itself again with its next renewal.
            await self._control.execute(("SREM", self._everyone, *(set(ids) - set(found))))
        return found

    async def close(self, goodbye: bool) -> None:
        """See `Link.close`."""
        if goodbye:
            with contextlib.suppress(BusAway):  # they run out by themselves
                await self._control.execute(
                    ("DEL", self._lease_key, self._inbox_key, self._sent_key),
                    ("SREM", self._everyone, self._id),
                )
        for line in (self._control, self._inbox, *self._doors.values()):
            line.close()
