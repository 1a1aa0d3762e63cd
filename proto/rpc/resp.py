"""One connection to Redis: pipelines go out, replies come back in order.

Smaller than a general client on purpose: a batch is one write, one parse and one future, with no task,
lock or retry in between. Connecting again is its users' business, who know what to repeat.
"""

import asyncio
import math
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import hiredis
from redis.asyncio.connection import SSLConnection, parse_url

from proto.rpc.bounded_reader import BoundedReader
from proto.rpc.errors import BusAway

Command = tuple[bytes | str | int, ...]
Replies = list[Any]
CONNECT_SECONDS = 5.0
"""Time for all addresses of a name together."""
ADDRESS_SECONDS = 1.0
"""Time that one of many has at least."""
COMING_SECONDS = 5.0
"""A long reply counts as lost if no part of it has come for this time."""
IDLE_SECONDS, ASK_SECONDS, ASKED = 15, 5, 3
"""Keepalive of TCP: seconds without a byte until the system asks whether the other end is still there,
seconds between its questions, and their number. Without it a server that vanished, or a firewall that has
forgotten the connection, would swallow the next command. A system without these options keeps times of its
own."""


class RedisReplyError(BusAway):
    """Redis answered with an error, such as that it is still loading."""


class _Awaited:
    """A pipeline whose replies have not all come."""

    __slots__ = ("count", "due", "future", "passed")

    def __init__(self, count: int, future: "asyncio.Future[Replies]") -> None:
        """`count`: of its replies."""
        self.count, self.future = count, future
        self.due = math.inf
        """When the connection counts as dead, by the event loop's clock."""
        self.passed = 0
        """See `BoundedReader.passed`: if it is another one when this is due, a long reply is coming."""


class Connection(asyncio.Protocol):
    """Use `Connection.open`. Every method must be called in the event loop's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = BoundedReader()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Awaited] = deque()
        self._replies: Replies = []
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = math.inf
        """When the timer ends. It outlives the replies that it is for: a timer for each would cost more."""
        self._reason = ""
        """Why the connection was given up."""
        self.client_id = 0
        """Redis's number of this connection."""
        self.history = b""
        """Changes when Redis restarts, and when another server takes its place: what was acknowledged before
        may be lost."""
        self.cluster = False
        """Whether Redis is one server of a cluster."""

    @classmethod
    async def open(cls, url: str) -> "Connection":
        """Connect, authenticate and select the database. Raises `BusAway`.

        A URL is that of redis-py: `redis://`, `rediss://` with `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`,
        or `unix://`.
        """
        where: dict[str, Any] = dict(parse_url(url))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await cls._dial(where)
                await connection._greet(where)
        except TimeoutError:
            raise BusAway(f"Redis at {_place(where)} does not answer") from None
        except BusAway as error:
            raise BusAway(f"Redis at {_place(where)}: {error}") from None
        except OSError as error:
            raise BusAway(f"Redis at {_place(where)} is unreachable: {error}") from None
        return connection

    @classmethod
    async def _dial(cls, where: dict[str, Any]) -> "Connection":
        loop = asyncio.get_running_loop()
        if path := where.get("path"):
            _, connection = await loop.create_unix_connection(cls, path)
            return connection
        context = None
        if where.get("connection_class") is SSLConnection:
            context = ssl.create_default_context(cafile=where.get("ssl_ca_certs"))
            if where.get("ssl_cert_reqs") == "none":
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if own := where.get("ssl_certfile"):
                context.load_cert_chain(own, where.get("ssl_keyfile"))
        host, port = where.get("host", "127.0.0.1"), where.get("port", 6379)
        # Given a name, uvloop's create_connection logs an error if that is not found after it was cancelled.
        problem, name = OSError("it has no address"), None if context is None else host
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        seconds = max(ADDRESS_SECONDS, CONNECT_SECONDS / len(addresses))
        for *_, address in addresses:
            try:
                async with asyncio.timeout(seconds):  # one may lose all packets
                    transport, connection = await loop.create_connection(
                        cls, *address[:2], ssl=context, server_hostname=name
                    )
                _ask_when_idle(transport.get_extra_info("socket"))
                return connection
            except TimeoutError:
                problem = OSError(f"{address[0]} does not answer")
            except OSError as error:
                problem = error
        raise problem

    async def _greet(self, where: dict[str, Any]) -> None:
        # PING is refused while Redis is loading its data.
        commands: list[Command] = [("PING",), ("CLIENT", "ID"), ("INFO", "server"), ("INFO", "replication")]
        if database := where.get("db"):
            commands.append(("SELECT", database))
        user, password = where.get("username"), where.get("password") or ""
        known: list[Command] = []
        if user or password:  # a user may have no password
            known = [("AUTH", user, password) if user else ("AUTH", password)]
        try:
            replies = await self.execute(known + commands)
        except BaseException:
            self.close()
            raise
        self.client_id, *infos = replies[len(known) + 1 :]
        lines = b"\r\n".join(infos[:2]).split(b"\r\n")
        self.cluster = not {b"redis_mode:cluster", b"server_mode:cluster"}.isdisjoint(lines)  # Redis, Valkey
        self.history = b" ".join(line for line in lines if line.startswith((b"run_id:", b"master_replid:")))

    @property
    def open_still(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, commands: Sequence[Command], timeout: float | None = None) -> "asyncio.Future[Replies]":
        """Send a pipeline; the future gets its replies, errors among them, or raises `BusAway`.

        After `timeout` seconds the connection counts as dead, unless a long reply is coming.
        """
        future: asyncio.Future[Replies] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(BusAway(self._reason or "the connection is closed"))
            return future
        if not commands:
            future.set_result([])
            return future
        awaited = _Awaited(len(commands), future)
        self._waiting.append(awaited)
        if timeout is not None:
            awaited.due, awaited.passed = self._loop.time() + timeout, self._reader.passed
            if awaited.due < self._look_at:
                self._look_later(awaited.due)
        packed = map(hiredis.pack_command, commands)  # type: ignore[arg-type]
        self._transport.write(b"".join(packed))
        return future

    async def execute(self, commands: Sequence[Command], timeout: float | None = None) -> Replies:
        """Send a pipeline and wait for its replies. Raises `BusAway`, for an error reply `RedisReplyError`.

        `timeout`: see `send`.
        """
        return checked(await self.send(commands, timeout))

    def _look_later(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._look_at = self._loop.call_at(due, self._look), due

    def _look(self) -> None:
        """Is anything overdue?"""
        self._timer, self._look_at, now = None, math.inf, self._loop.time()
        awaited = [one for one in self._waiting if one.due < math.inf and not one.future.done()]
        for one in awaited:
            if one.due > now:
                continue
            if one.passed == self._reader.passed:
                return self.close()
            one.due, one.passed = now + COMING_SECONDS, self._reader.passed
        if awaited:
            self._look_later(min(one.due for one in awaited))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        if self._reason:
            return
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if not self._waiting:
                    # Redis has refused the connection, as when it has too many: it says why, and hangs up.
                    return self._give_up(str(reply))
                self._replies.append(reply)
                if len(self._replies) == self._waiting[0].count:
                    future = self._waiting.popleft().future
                    replies, self._replies = self._replies, []
                    reader.held = 0
                    if not future.done():
                        future.set_result(replies)
        except hiredis.ProtocolError as error:
            return self._give_up(f"what answers there is no Redis: {error}")
        if self._waiting or reader.inside:
            reader.paused(data, not self._waiting)

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        self.close()

    def connection_lost(self, error: Exception | None) -> None:
        # A refusal may come in place of the reply to the first command of several.
        refusals = [str(reply) for reply in self._replies if isinstance(reply, hiredis.ReplyError)]
        self._reason = self._reason or next(iter(refusals), "the connection was lost")
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for awaited in waiting:
            if not awaited.future.done():
                awaited.future.set_exception(BusAway(self._reason))


FINAL = ("WRONGTYPE", "NOPERM", "ERR")
"""Beginnings of errors that a command gets whenever it is sent. An operator has made a mistake, such as a key
of another type, or somebody has written an entry in a name that is none."""


def is_error(reply: Any) -> bool:
    return isinstance(reply, hiredis.ReplyError)


def passes(reply: Any) -> bool:
    """Whether a reply is an error that the command may not get when it is sent again."""
    return is_error(reply) and not str(reply).startswith(FINAL)


def checked(replies: Replies) -> Replies:
    """The replies. Raises `RedisReplyError` if one is an error."""
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            raise RedisReplyError(str(reply))
    return replies


def _ask_when_idle(connected: socket.socket) -> None:
    """See `IDLE_SECONDS`."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("KEEPIDLE", IDLE_SECONDS), ("KEEPINTVL", ASK_SECONDS), ("KEEPCNT", ASKED)):
        if number := getattr(socket, f"TCP_{option}", None):
            connected.setsockopt(socket.IPPROTO_TCP, number, value)


def _place(where: dict[str, Any]) -> str:
    """The address as it may be shown: without a password."""
    return str(where.get("path") or f"{where.get('host', '127.0.0.1')}:{where.get('port', 6379)}")
