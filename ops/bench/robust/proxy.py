"""A way to Redis that can be cut: what a network does to one process and not to the others."""

import asyncio
import contextlib
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from redis.connection import UnixDomainSocketConnection, parse_url

PIECE = 65536
"""Bytes that are passed on at once."""


class Proxy:
    """A TCP port on loopback that leads to a Redis; as long as nothing is said, it passes everything on."""

    def __init__(self, redis_url: str) -> None:
        self._to: dict[str, Any] = parse_url(redis_url)  # type: ignore[no-untyped-call]
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._refusing = False
        self._passing = asyncio.Event()
        self._passing.set()
        self._delay = 0.0
        self._losing = False

    @property
    def url(self) -> str:
        """The Redis behind the proxy, as a process is told."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        name, password = (quote(str(self._to.get(key) or ""), safe="") for key in ("username", "password"))
        who = f"{name}:{password}@" if password else ""
        return f"redis://{who}127.0.0.1:{port}/{self._to.get('db') or 0}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        self._passing.set()

    def reset(self) -> None:
        """Break all connections, and refuse new ones until `mend`."""
        self._refusing = True
        self._break()

    def silence(self) -> None:
        """Pass nothing on until `mend`, and leave all connections open."""
        self._passing.clear()

    def slow(self, seconds: float) -> None:
        """Hold back every piece for `seconds`, until `mend`."""
        self._delay = seconds

    def lose_answers(self) -> None:
        """Pass on what is asked, and nothing of what is answered. `mend` breaks the connections."""
        self._losing = True

    def mend(self) -> None:
        """Pass everything on again."""
        if self._losing:
            self._break()
        self._refusing, self._losing, self._delay = False, False, 0.0
        self._passing.set()

    def _break(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            if self._refusing:
                return
            there_reader, there_writer = await self._connect()
            ends.append(there_writer)
            self._writers.update(ends)
            await asyncio.gather(self._pass(reader, there_writer), self._pass(there_reader, writer, True))
        except OSError:
            pass  # one of the two has gone, and the other learns it now
        finally:
            self._writers.difference_update(ends)
            for end in ends:
                end.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool = False
    ) -> None:
        while data := await reader.read(PIECE):
            await self._passing.wait()
            if answers and self._losing:
                continue
            if self._delay:
                await asyncio.sleep(self._delay)
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        to = self._to
        if to.get("connection_class") is UnixDomainSocketConnection:
            return await asyncio.open_unix_connection(to["path"])
        return await asyncio.open_connection(to.get("host", "127.0.0.1"), to.get("port", 6379))
