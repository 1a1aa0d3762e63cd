"""The bus over Redis Streams.

    writer      all XADDs, XACKs, XDELs and XTRIMs, in order; unanswered batches are sent again
    control     leases, claims, questions; fails while Redis is away, its users try again later
    inbox       one blocking XREAD at a time
    door        one blocking XREADGROUP at a time, for each door

Every one has a connection of its own, for a blocked read holds its connection up. A read blocks for
`BLOCK_SECONDS` and is given `REPLY_SECONDS` more to answer before its connection counts as dead.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

import hiredis

from proto.rpc.bus import DEAD_LETTERS, WITHDRAWN, Batch, Received
from proto.rpc.errors import BusAway
from proto.rpc.resp import Command, Connection, RedisReplyError, Replies

log = logging.getLogger(__name__)

GROUP = "quire"
FIELD = b"e"
BLOCK_SECONDS = 5
REPLY_SECONDS = 5
RETRY_SECONDS = 0.1
READ_COUNT = 1000
MANY_UNANSWERED = 32
"""Batches under way at which a fast writer is asked to wait."""
INBOX_SECONDS = 600
"""An inbox outlives its process's last renewal for so long, then Redis drops it."""
DEAD_LETTERS_KEPT = 1000


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
        self._url, self._prefix, self._id = bus.url, bus.prefix, process_id
        self._writer = Writer(bus.url)
        self._control: Connection | None = None
        self._doors: dict[str, Connection] = {}

    async def start(self) -> None:
        await self._call(("PING",))
        await self._writer.start()

    # --- writing ---

    def post(self, batch: Batch) -> None:
        self._writer.write(Pipeline(batch, self._prefix))

    async def drained(self) -> None:
        await self._writer.drained()

    # --- reading ---

    async def inbox(self) -> AsyncIterator[Sequence[Received]]:
        key, last = f"{self._prefix}inbox:{self._id}", "0-0"
        connection: Connection | None = None
        try:
            while True:
                try:
                    if connection is None:
                        connection = await Connection.open(self._url)
                    entries = await _read(connection, ("STREAMS", key, last), "XREAD")
                except BusAway:
                    _closed(connection)
                    connection = None
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if entries:
                    last = entries[-1].id
                    yield entries
        finally:
            _closed(connection)

    async def take(self, door: str, count: int) -> Sequence[Received]:
        key = self._prefix + door
        while True:
            try:
                if (connection := self._doors.get(door)) is None:
                    connection = await Connection.open(self._url)
                    await self.join(door)
                    self._doors[door] = connection
                    # What an earlier connection was given and lost is still pending under our name.
                    entries = await self._take(connection, key, "0", READ_COUNT)
                else:
                    entries = await self._take(connection, key, ">", count)
            except RedisReplyError as error:
                if not str(error).startswith("NOGROUP"):
                    log.warning("Redis refuses to give calls: %s", error)
                await self._leave_connection(door)
            except BusAway:
                await self._leave_connection(door)
            except asyncio.CancelledError:
                _closed(self._doors.pop(door, None))
                raise
            else:
                if entries:
                    return entries

    async def _take(self, connection: Connection, key: str, after: str, count: int) -> list[Received]:
        what = ("GROUP", GROUP, self._id, "STREAMS", key, after)
        return await _read(connection, what, "XREADGROUP", count)

    async def _leave_connection(self, door: str) -> None:
        _closed(self._doors.pop(door, None))
        await asyncio.sleep(RETRY_SECONDS)

    # --- doors ---

    async def join(self, door: str) -> None:
        key = self._prefix + door
        try:
            # From 0: calls that came before there was any server are served too.
            await self._call(("XGROUP", "CREATE", key, GROUP, "0", "MKSTREAM"))
        except RedisReplyError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        await self._call(("XGROUP", "CREATECONSUMER", key, GROUP, self._id))

    async def orphans(self, door: str) -> Sequence[Received]:
        key = self._prefix + door
        dead = [name for name in await self._consumers(key) if name != self._id]
        leases = await self.holders(dead)
        entries: list[Received] = []
        for name in (name for name, lease in zip(dead, leases, strict=True) if lease is None):
            (pending,) = await self._call(("XPENDING", key, GROUP, "-", "+", READ_COUNT, name))
            ids = [item[0] for item in pending]
            if ids:
                (claimed,) = await self._call(("XCLAIM", key, GROUP, self._id, 0, *ids))
                entries += _received(claimed)
                # An entry that was deleted while it was pending is claimed in silence.
                gone = set(ids) - {item[0] for item in claimed if item and item[1] is not None}
                if gone:
                    await self._call(("XACK", key, GROUP, *gone))
            if len(ids) < READ_COUNT:
                await self._call(("XGROUP", "DELCONSUMER", key, GROUP, name))
        return entries

    async def trim(self, door: str) -> None:
        key = self._prefix + door
        # In this order: what is delivered in between has higher ids than both.
        groups, pending = await self._call(("XINFO", "GROUPS", key), ("XPENDING", key, GROUP))
        delivered = next(
            (
                fields[b"last-delivered-id"]
                for fields in map(_pairs, groups)
                if fields[b"name"] == GROUP.encode()
            ),
            None,
        )
        if delivered is not None:
            oldest = min(delivered, pending[1] or delivered, key=_order)
            await self._call(("XTRIM", key, "MINID", oldest))

    async def leave(self, door: str) -> None:
        key = self._prefix + door
        _closed(self._doors.pop(door, None))
        (pending,) = await self._call(("XPENDING", key, GROUP, "-", "+", 1, self._id))
        if not pending:
            await self._call(("XGROUP", "DELCONSUMER", key, GROUP, self._id))

    async def served(self, door: str) -> bool:
        return any(await self.holders(await self._consumers(self._prefix + door)))

    async def _consumers(self, key: str) -> list[str]:
        try:
            (consumers,) = await self._call(("XINFO", "CONSUMERS", key, GROUP))
        except RedisReplyError:  # no such stream or group
            return []
        return [_pairs(fields)[b"name"].decode() for fields in consumers]

    # --- leases ---

    async def hold(self, value: bytes, seconds: float, anew: bool) -> bool:
        lease, inbox = f"{self._prefix}alive:{self._id}", f"{self._prefix}inbox:{self._id}"
        setting: Command = ("SET", lease, value, "PX", max(1, int(seconds * 1000)))
        done, _ = await self._call(
            setting if anew else (*setting, "XX"), ("EXPIRE", inbox, max(INBOX_SECONDS, int(10 * seconds)))
        )
        return done is not None

    async def holders(self, ids: Sequence[str]) -> Sequence[bytes | None]:
        if not ids:
            return []
        (values,) = await self._call(("MGET", *(f"{self._prefix}alive:{one}" for one in ids)))
        found: Sequence[bytes | None] = values
        return found

    async def all_holders(self) -> dict[str, bytes]:
        start, ids, cursor = f"{self._prefix}alive:", [], b"0"
        while True:
            ((cursor, keys),) = await self._call(
                ("SCAN", cursor, "MATCH", f"{_literal(start)}*", "COUNT", 1000)
            )
            ids += [key.decode().removeprefix(start) for key in keys]
            if cursor == b"0":
                break
        ids = sorted(set(ids))
        values = await self.holders(ids)
        return {one: value for one, value in zip(ids, values, strict=True) if value is not None}

    async def close(self, gone: bool) -> None:
        try:
            if gone:
                await self._writer.flush()
                await self._call(
                    ("DEL", f"{self._prefix}alive:{self._id}", f"{self._prefix}inbox:{self._id}")
                )
        except BusAway:
            pass  # both run out by themselves
        await self._writer.close()
        for connection in (self._control, *self._doors.values()):
            _closed(connection)

    async def _call(self, *commands: Command) -> Replies:
        """Ask over the control connection; it is opened again by the call after a failed one."""
        if self._control is None or self._control.closed.done():
            self._control = await Connection.open(self._url)
        return await self._control.execute(*commands, timeout=REPLY_SECONDS)


class Pipeline:
    """A batch as commands, and whom to tell of its replies."""

    def __init__(self, batch: Batch, prefix: str) -> None:
        commands: list[Command] = [
            ("XADD", prefix + name, "*", FIELD, payload) for name, payload, _ in batch.adds
        ]
        commands += [("XACK", prefix + door, GROUP, entry) for door, entry in batch.acks]
        commands += [("XDEL", prefix + door, entry) for door, entry in batch.deletes]
        commands += [("XTRIM", prefix + name, "MINID", entry) for name, entry in batch.trims]
        for letter in batch.letters:
            fields = (
                "stream",
                letter.stream,
                "id",
                letter.id,
                "reason",
                letter.reason,
                FIELD,
                letter.payload,
            )
            commands.append(("XADD", prefix + DEAD_LETTERS, "MAXLEN", "~", DEAD_LETTERS_KEPT, "*", *fields))
        self.commands = commands
        self._added = [added for _, _, added in batch.adds]

    def answered(self, replies: Replies) -> None:
        for added, reply in zip(self._added, replies, strict=False):
            if added is not None:
                added(reply.decode())


class Writer:
    """Sends pipelines in order, without waiting for one's replies before the next; keeps each until then."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._unanswered: deque[Pipeline] = deque()
        self._keeper: asyncio.Task[None] | None = None
        self._eased = asyncio.Event()

    async def start(self) -> None:
        self._connection = await Connection.open(self._url)
        self._keeper = asyncio.ensure_future(self._keep())

    def write(self, pipeline: Pipeline) -> None:
        self._unanswered.append(pipeline)
        if self._connection is not None:
            self._send(self._connection, pipeline)

    async def drained(self) -> None:
        while len(self._unanswered) >= MANY_UNANSWERED:
            self._eased.clear()
            await self._eased.wait()

    async def flush(self, timeout: float = 2.0) -> None:
        """Return once all is answered; raises `BusAway` if that takes too long."""
        try:
            async with asyncio.timeout(timeout):
                while self._unanswered:
                    self._eased.clear()
                    await self._eased.wait()
        except TimeoutError:
            raise BusAway("Redis has not taken everything") from None

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        _closed(self._connection)

    def _send(self, connection: Connection, pipeline: Pipeline) -> None:
        def done(replies: Replies | None) -> None:
            if replies is None or connection is not self._connection:
                return  # sent again over the next connection
            if any(isinstance(reply, hiredis.ReplyError) for reply in replies):
                error = next(reply for reply in replies if isinstance(reply, hiredis.ReplyError))
                log.warning("Redis refused a write, which will be tried again: %s", error)
                self._connection = None  # replies that are still to come on this one count no longer
                connection.close()
                return
            self._unanswered.popleft()
            self._eased.set()
            pipeline.answered(replies)

        connection.send(pipeline.commands, done)

    async def _keep(self) -> None:
        """Replace the connection whenever it is lost, and send what was not answered again."""
        connection = self._connection
        while True:
            assert connection is not None
            await connection.closed
            self._connection = connection = None
            while connection is None:
                await asyncio.sleep(RETRY_SECONDS)
                try:
                    connection = await Connection.open(self._url)
                except BusAway as error:
                    log.debug("%s", error)
            log.info("connected to Redis again")
            self._connection = connection
            for pipeline in list(self._unanswered):
                self._send(connection, pipeline)


async def _read(
    connection: Connection, what: tuple[str, ...], command: str, count: int = READ_COUNT
) -> list[Received]:
    """One blocking read of one stream; empty if nothing came in time. Raises `BusAway`."""
    cut = what.index("STREAMS")
    options = ("COUNT", count, "BLOCK", BLOCK_SECONDS * 1000)
    (reply,) = await connection.execute(
        (command, *what[:cut], *options, *what[cut:]), timeout=BLOCK_SECONDS + REPLY_SECONDS
    )
    return _received(reply[0][1]) if reply else []


def _received(items: Sequence[Any]) -> list[Received]:
    entries = []
    for item in items:
        if not item:
            continue
        number, fields = item
        ours = fields is not None and len(fields) == 2 and fields[0] == FIELD
        payload: bytes | None = WITHDRAWN if fields is None else fields[1] if ours else None
        entries.append(Received(number.decode(), payload))
    return entries


def _pairs(fields: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(fields[::2], fields[1::2], strict=True))


def _order(entry: bytes) -> tuple[int, int]:
    milliseconds, _, number = entry.partition(b"-")
    return int(milliseconds), int(number or 0)


def _literal(text: str) -> str:
    """`text` as a glob that matches itself."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in text)


def _closed(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()
