"""One connection to Redis: pipelines go out, replies come back in order.

Smaller than a general client on purpose: a batch of a step is one write, one parse and one callback,
with no task, lock or retry in between. Reconnecting is its users' business, who know what to repeat.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
from redis.connection import parse_url

from proto.rpc.errors import BusAway

Command = tuple[Any, ...]  # of text, bytes and numbers
Replies = list[Any]
CONNECT_SECONDS = 5.0


class RedisReplyError(BusAway):
    """Redis answered with an error, such as that it is still loading."""


class Connection(asyncio.Protocol):
    """Use `Connection.open`. Every method must be called in the event loop's thread."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[int, Callable[[Replies | None], None]]] = deque()
        self._replies: Replies = []
        self.closed = asyncio.get_running_loop().create_future()
        """Done once the connection is gone."""

    @classmethod
    async def open(cls, url: str) -> "Connection":
        """Connect, authenticate and select the database. Raises `BusAway`."""
        where: dict[str, Any] = dict(parse_url(url))  # type: ignore[no-untyped-call]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if path := where.get("path"):
                    _, connection = await loop.create_unix_connection(cls, path)
                else:
                    host, port = where.get("host", "127.0.0.1"), where.get("port", 6379)
                    tls = True if url.startswith("rediss") else None
                    _, connection = await loop.create_connection(cls, host, port, ssl=tls)
                hello: list[Command] = []
                if password := where.get("password"):
                    user = where.get("username")
                    hello.append(("AUTH", user, password) if user else ("AUTH", password))
                if database := where.get("db"):
                    hello.append(("SELECT", database))
                await connection.execute(("PING",), *hello)
        except TimeoutError:
            raise BusAway(f"Redis at {_place(where)} does not answer") from None
        except RedisReplyError:
            raise
        except OSError as error:
            raise BusAway(f"Redis at {_place(where)} is unreachable: {error}") from None
        return connection

    def send(self, commands: Sequence[Command], done: Callable[[Replies | None], None]) -> None:
        """Send a pipeline; `done` gets its replies, or None if the connection was lost before."""
        if self._transport is None or self._transport.is_closing():
            done(None)
            return
        self._waiting.append((len(commands), done))
        self._transport.write(b"".join([hiredis.pack_command(command) for command in commands]))

    async def execute(self, *commands: Command, timeout: float | None = None) -> Replies:
        """Send a pipeline and wait for its replies. Raises `BusAway`; `RedisReplyError` for an error reply.

        If it is cancelled or times out the connection is closed: replies could not be told apart any more.
        """
        future: asyncio.Future[Replies | None] = asyncio.get_running_loop().create_future()
        self.send(commands, lambda replies: None if future.done() else future.set_result(replies))
        try:
            async with asyncio.timeout(timeout):
                replies = await future
        except TimeoutError:
            self.close()
            raise BusAway("Redis does not answer") from None
        except asyncio.CancelledError:
            self.close()
            raise
        if replies is None:
            raise BusAway("the connection to Redis was lost")
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise RedisReplyError(str(reply))
        return replies

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports behave as asyncio's without being instances of them.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._replies.append(reply)
            if len(self._replies) == self._waiting[0][0]:
                _, done = self._waiting.popleft()
                replies, self._replies = self._replies, []
                done(replies)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            done(None)


def _place(where: dict[str, Any]) -> str:
    """The address as it may be shown: without a password."""
    return str(where.get("path") or f"{where.get('host', '127.0.0.1')}:{where.get('port', 6379)}")
