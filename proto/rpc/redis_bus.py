"""The bus over Redis Streams.

    control     batches of writes, leases, claims, questions
    inbox       one blocking XREAD at a time
    door        one blocking XREADGROUP at a time, for each door

Every one has a connection of its own, for a blocked read holds its connection up. A read blocks for
`BLOCK_SECONDS` and gets `REPLY_SECONDS` more to answer before its connection counts as dead. A
connection that was lost is opened again by the next use.

Keys, besides the streams: `alive:<process-id>` the lease, `processes` the ids of those that have taken
one, `sent:<process-id>` the number of the last batch that opened calls.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import hiredis

from proto.rpc.bus import DEAD_LETTERS, DEAD_LETTERS_KEPT, Batch, Received, inbox_of
from proto.rpc.errors import BusAway
from proto.rpc.resp import Command, Connection, RedisReplyError, Replies

GROUP = "replicas"
FIELD = b"e"
BLOCK_SECONDS = 5
REPLY_SECONDS = 5
READ_COUNT = 64
"""Most entries of one read: enough for a burst, few enough that readers of calls keep up in between."""
PENDING_COUNT = 1000
FORGOTTEN_SECONDS = 600
"""Seconds after its process's last renewal of the lease until Redis drops an inbox."""

# Takes over the entries that are pending for consumers without a lease, and removes these consumers. Atomic,
# so that a consumer which comes back at this very moment loses nothing.
ADOPT = """
local left = tonumber(ARGV[4])
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #row, 2 do consumer[row[i]] = row[i + 1] end
  local name = consumer['name']
  if name ~= ARGV[2] and redis.call('EXISTS', ARGV[3] .. name) == 0 then
    if consumer['pending'] == 0 then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], name)
    elseif left > 0 then
      for _, item in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', left, name)) do
        redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, item[1], 'JUSTID')
        left = left - 1
      end
    end
  end
end
"""


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


class Line:
    """A connection that is opened when it is needed, and again after it was lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opening = asyncio.Lock()
        self.connection: Connection | None = None

    async def get(self) -> Connection:
        """Raises `BusAway`."""
        connection = self._open()
        if connection is None:
            async with self._opening:  # one connection for all that want it now
                connection = self._open()
                if connection is None:
                    connection = self.connection = await Connection.open(self._url)
        return connection

    def _open(self) -> Connection | None:
        connection = self.connection
        return connection if connection is not None and connection.open_still else None

    async def execute(self, *commands: Command, block_seconds: float = 0) -> Replies:
        """Raises `BusAway`."""
        connection = await self.get()
        return await connection.execute(commands, block_seconds + REPLY_SECONDS)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


class RedisLink:
    """See `proto.rpc.bus.Link`."""

    def __init__(self, bus: RedisBus, process_id: str) -> None:
        self._prefix, self._id, self._url = bus.prefix, process_id, bus.url
        self._inbox_key = bus.prefix + inbox_of(process_id)
        self._lease_key = f"{bus.prefix}alive:{process_id}"
        self._sent_key = f"{bus.prefix}sent:{process_id}"
        self._control = Line(bus.url)
        self._inbox = Line(bus.url)
        self._doors: dict[str, Line] = {}
        self._everyone = f"{bus.prefix}processes"
        self._leased = self._leased_from = b""

    async def start(self) -> None:
        """Raises `BusAway`."""
        await self._control.get()

    # --- writing ---

    async def publish(self, batch: Batch, again: bool = False) -> Sequence[str]:
        """See `Link.publish`."""
        if again and batch.opens:
            (sent,) = await self._control.execute(("GET", self._sent_key))
            if sent is not None and int(sent) >= batch.number:
                return ()
        commands = self._commands(batch)
        if batch.opens:
            # A transaction, so that the number is there if and only if the calls are.
            mark: Command = ("SET", self._sent_key, batch.number, "EX", FORGOTTEN_SECONDS)
            commands = [("MULTI",), *commands, mark, ("EXEC",)]
        connection = await self._control.get()
        replies = await connection.send(commands)
        if batch.opens and isinstance(replies[-1], list):
            replies = replies[-1]
        for reply in replies:
            # A key of another type is an operator's mistake, which no retry repairs.
            if isinstance(reply, hiredis.ReplyError) and not str(reply).startswith("WRONGTYPE"):
                raise RedisReplyError(str(reply))
        return [reply.decode() if isinstance(reply, bytes) else "" for reply in replies[: len(batch.opens)]]

    def _commands(self, batch: Batch) -> list[Command]:
        prefix = self._prefix
        commands: list[Command] = [
            ("XADD", prefix + door, "*", FIELD, payload) for door, payload in batch.opens
        ]
        commands += [
            ("XADD", prefix + inbox_of(process_id), "NOMKSTREAM", "*", FIELD, payload)
            for process_id, payload in batch.entries
        ]
        for door, entry in batch.settled:
            commands += [("XACK", prefix + door, GROUP, entry), ("XDEL", prefix + door, entry)]
        for stream, entry, reason, payload in batch.letters:
            letter: Command = ("stream", stream, "id", entry, "reason", reason, "entry", payload)
            commands.append(("XADD", prefix + DEAD_LETTERS, "MAXLEN", "~", DEAD_LETTERS_KEPT, "*", *letter))
        return commands

    # --- the inbox ---

    async def read(self, after: str) -> Sequence[Received]:
        """See `Link.read`."""
        options = ("COUNT", READ_COUNT, "BLOCK", BLOCK_SECONDS * 1000, "STREAMS", self._inbox_key, after)
        (reply,) = await self._inbox.execute(("XREAD", *options), block_seconds=BLOCK_SECONDS)
        return _received(reply)

    async def tail(self) -> str:
        """See `Link.tail`."""
        (newest,) = await self._control.execute(("XREVRANGE", self._inbox_key, "+", "-", "COUNT", 1))
        return newest[0][0].decode() if newest else "0-0"

    async def trim(self, upto: str) -> None:
        """See `Link.trim`."""
        milliseconds, _, number = upto.partition("-")
        await self._control.execute(("XTRIM", self._inbox_key, "MINID", f"{milliseconds}-{int(number) + 1}"))

    # --- doors ---

    async def join(self, door: str) -> None:
        """See `Link.join`."""
        key = self._prefix + door
        # From 0: calls that came before there was any replica are served too.
        try:
            await self._control.execute(("XGROUP", "CREATE", key, GROUP, "0", "MKSTREAM"))
        except RedisReplyError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def take(self, door: str, count: int) -> Sequence[Received]:
        """See `Link.take`."""
        line = self._doors.setdefault(door, Line(self._url))
        options = ("COUNT", count, "BLOCK", BLOCK_SECONDS * 1000, "STREAMS", self._prefix + door, ">")
        try:
            (reply,) = await line.execute(
                ("XREADGROUP", "GROUP", GROUP, self._id, *options), block_seconds=BLOCK_SECONDS
            )
        except RedisReplyError as error:
            if not str(error).startswith(("NOGROUP", "UNBLOCKED")):
                raise
            await self.join(door)  # the door was deleted
            return ()
        return _received(reply)

    async def wake(self, door: str) -> None:
        """See `Link.wake`."""
        line = self._doors.get(door)
        if line is not None and line.connection is not None:
            await self._control.execute(("CLIENT", "UNBLOCK", line.connection.client_id))

    async def pending(self, door: str, adopt: bool) -> Sequence[Received]:
        """See `Link.pending`."""
        key = self._prefix + door
        commands: list[Command] = [
            ("XREADGROUP", "GROUP", GROUP, self._id, "COUNT", PENDING_COUNT, "STREAMS", key, "0")
        ]
        if adopt:
            arguments = (GROUP, self._id, f"{self._prefix}alive:", PENDING_COUNT)
            commands.insert(0, ("EVAL", ADOPT, 1, key, *arguments))
        (items,) = (await self._control.execute(*commands))[-1:]
        withdrawn = [number for number, fields in items[0][1] if fields is None] if items else []
        if withdrawn:  # deleted while it was pending: nothing to do any more
            await self._control.execute(("XACK", key, GROUP, *withdrawn))
        return [one for one in _received(items) if one.id.encode() not in withdrawn]

    # --- leases ---

    async def take_lease(self, value: bytes, seconds: float) -> None:
        """See `Link.take_lease`."""
        connection = await self._control.get()
        lease: Command = ("SET", self._lease_key, value, "PX", _milliseconds(seconds))
        # A group is made and dropped again for what it leaves behind: an empty stream.
        group = ("XGROUP", "CREATE", self._inbox_key, GROUP, "$", "MKSTREAM")
        await connection.execute([group, ("XGROUP", "DESTROY", self._inbox_key, GROUP)], REPLY_SECONDS)
        await connection.execute([lease, self._keep_inbox(seconds)], REPLY_SECONDS)
        self._leased, self._leased_from = value, connection.run_id

    async def renew_lease(self, value: bytes, seconds: float) -> bool:
        """See `Link.renew_lease`."""
        connection = await self._control.get()
        whole: Command = ("SET", self._lease_key, value, "PX", _milliseconds(seconds))
        # One that has not changed is renewed in a way that needs no memory: a full Redis allows it.
        same: Command = ("PEXPIRE", self._lease_key, _milliseconds(seconds))
        lease = same if value == self._leased else (*whole, "XX")
        held, inbox = await connection.execute([lease, self._keep_inbox(seconds)], REPLY_SECONDS)
        if not inbox:
            return False
        if not held and connection.run_id == self._leased_from:
            return False
        if not held:
            await connection.execute([whole], REPLY_SECONDS)
        self._leased, self._leased_from = value, connection.run_id
        return True

    def _keep_inbox(self, seconds: float) -> Command:
        return "EXPIRE", self._inbox_key, max(FORGOTTEN_SECONDS, int(10 * seconds))

    async def enlist(self) -> None:
        """See `Link.enlist`."""
        await self._control.execute(("SADD", self._everyone, self._id))

    async def leases(self, process_ids: Sequence[str] | None = None) -> dict[str, bytes]:
        """See `Link.leases`."""
        ids = process_ids
        if ids is None:
            (members,) = await self._control.execute(("SMEMBERS", self._everyone))
            ids = [one.decode() for one in members]
        if not ids:
            return {}
        (values,) = await self._control.execute(("MGET", *(f"{self._prefix}alive:{one}" for one in ids)))
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


def _received(reply: Any) -> list[Received]:
    """Entries of the one stream that was read; none if the read timed out."""
    if not reply:
        return []
    return [
        Received(number.decode(), fields[1] if fields and len(fields) == 2 and fields[0] == FIELD else None)
        for number, fields in reply[0][1]
    ]


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))
