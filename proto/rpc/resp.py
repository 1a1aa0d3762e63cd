"""One connection to Redis: pipelines go out, replies come back in order.

Smaller than a general client on purpose: a batch is one write, one parse and one future, with no task,
lock or retry in between. Connecting again is its users' business, who know what to repeat.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import hiredis
from redis.asyncio.connection import parse_url

from proto.rpc.errors import BusAway

Command = tuple[bytes | str | int, ...]
Replies = list[Any]
CONNECT_SECONDS = 5.0


class RedisReplyError(BusAway):
    """Redis answered with an error, such as that it is still loading."""


class Connection(asyncio.Protocol):
    """Use `Connection.open`. Every method must be called in the event loop's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[int, asyncio.Future[Replies]]] = deque()
        self._replies: Replies = []
        self.client_id = 0
        """Redis's number of this connection."""
        self.run_id = b""
        """Changes when Redis restarts."""

    @classmethod
    async def open(cls, url: str) -> "Connection":
        """Connect, authenticate and select the database. Raises `BusAway`."""
        where: dict[str, Any] = dict(parse_url(url))
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await cls._dial(url, where)
                await connection._greet(where)
        except TimeoutError:
            raise BusAway(f"Redis at {_place(where)} does not answer") from None
        except BusAway as error:
            raise BusAway(f"Redis at {_place(where)}: {error}") from None
        except OSError as error:
            raise BusAway(f"Redis at {_place(where)} is unreachable: {error}") from None
        return connection

    @classmethod
    async def _dial(cls, url: str, where: dict[str, Any]) -> "Connection":
        loop = asyncio.get_running_loop()
        if path := where.get("path"):
            _, connection = await loop.create_unix_connection(cls, path)
            return connection
        context = None
        if url.startswith("rediss:"):
            context = ssl.create_default_context(cafile=where.get("ssl_ca_certs"))
            if where.get("ssl_cert_reqs") == "none":
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, connection = await loop.create_connection(
            cls, where.get("host", "127.0.0.1"), where.get("port", 6379), ssl=context
        )
        return connection

    async def _greet(self, where: dict[str, Any]) -> None:
        try:
            if password := where.get("password"):
                user = where.get("username")
                await self.execute([("AUTH", user, password) if user else ("AUTH", password)])
            # PING is refused while Redis is loading its data.
            commands: list[Command] = [("PING",), ("CLIENT", "ID"), ("INFO", "server")]
            if database := where.get("db"):
                commands.append(("SELECT", database))
            _, self.client_id, info, *_ = await self.execute(commands)
        except BaseException:
            self.close()
            raise
        self.run_id = next(line for line in info.split(b"\r\n") if line.startswith(b"run_id:"))

    @property
    def open_still(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, commands: Sequence[Command]) -> "asyncio.Future[Replies]":
        """Send a pipeline; the future gets its replies, errors among them, or raises `BusAway`."""
        future: asyncio.Future[Replies] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(BusAway("the connection is closed"))
            return future
        if not commands:
            future.set_result([])
            return future
        self._waiting.append((len(commands), future))
        packed = map(hiredis.pack_command, commands)  # type: ignore[arg-type]
        self._transport.write(b"".join(packed))
        return future

    async def execute(self, commands: Sequence[Command], timeout: float | None = None) -> Replies:
        """Send a pipeline and wait for its replies. Raises `BusAway`, for an error reply `RedisReplyError`.

        After `timeout` seconds the connection counts as dead.
        """
        future = self.send(commands)
        timer = None if timeout is None else self._loop.call_later(timeout, self.close)
        try:
            replies = await future
        finally:
            if timer is not None:
                timer.cancel()
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise RedisReplyError(str(reply))
        return replies

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._replies.append(reply)
            if len(self._replies) == self._waiting[0][0]:
                _, future = self._waiting.popleft()
                replies, self._replies = self._replies, []
                if not future.done():
                    future.set_result(replies)

    def connection_lost(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(BusAway("the connection was lost"))


def _place(where: dict[str, Any]) -> str:
    """The address as it may be shown: without a password."""
    return str(where.get("path") or f"{where.get('host', '127.0.0.1')}:{where.get('port', 6379)}")
