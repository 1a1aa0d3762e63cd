"""A proxy passes everything on, until it is told to break what it passes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from ops.bench.robust.proxy import Proxy


@pytest.fixture
async def echo() -> AsyncIterator[str]:
    """The URL of a server that says back what it hears."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1024):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"redis://somebody:a%2Fb@127.0.0.1:{server.sockets[0].getsockname()[1]}/3"
    server.close()


@contextlib.asynccontextmanager
async def connected(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port(proxy))
    yield reader, writer
    writer.close()


def port(proxy: Proxy) -> int:
    return int(proxy.url.rpartition(":")[2].partition("/")[0])


async def said_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    return await asyncio.wait_for(reader.read(1024), 60)


async def test_it_passes_on_and_keeps_user_password_and_database(echo: str) -> None:
    async with Proxy(echo) as proxy, connected(proxy) as (reader, writer):
        assert proxy.url == f"redis://somebody:a%2Fb@127.0.0.1:{port(proxy)}/3"
        assert await said_back(reader, writer, b"one") == b"one"
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 60) == b""


async def test_a_unix_socket_has_a_port(tmp_path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1024))

    path = tmp_path / "socket"
    server = await asyncio.start_unix_server(serve, path)
    async with Proxy(f"unix://{path}?password=p&db=2") as proxy, connected(proxy) as ends:
        assert proxy.url == f"redis://:p@127.0.0.1:{port(proxy)}/2"
        assert await said_back(*ends, b"one") == b"one"
    server.close()


async def test_reset_breaks_connections_and_refuses_others(echo: str) -> None:
    async with Proxy(echo) as proxy:
        async with connected(proxy) as (reader, writer):
            assert await said_back(reader, writer, b"one") == b"one"
            proxy.reset()
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
        async with connected(proxy) as (reader, _):
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
        proxy.mend()
        async with connected(proxy) as ends:
            assert await said_back(*ends, b"two") == b"two"


async def test_silence_loses_nothing(echo: str) -> None:
    async with Proxy(echo) as proxy, connected(proxy) as (reader, writer):
        proxy.silence()
        writer.write(b"one")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1024), 0.05)
        proxy.mend()
        assert await asyncio.wait_for(reader.read(1024), 60) == b"one"


async def test_lost_answers_do_not_come_later(echo: str) -> None:
    async with Proxy(echo) as proxy:
        async with connected(proxy) as (reader, writer):
            assert await said_back(reader, writer, b"one") == b"one"
            proxy.lose_answers()
            writer.write(b"two")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1024), 0.05)
            proxy.mend()
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(1024), 60) == b""
        async with connected(proxy) as ends:
            assert await said_back(*ends, b"three") == b"three"


async def test_slow_holds_back(echo: str) -> None:
    async with Proxy(echo) as proxy, connected(proxy) as (reader, writer):
        proxy.slow(0.1)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await said_back(reader, writer, b"one") == b"one"
        assert loop.time() - begun >= 0.2  # there and back
        proxy.mend()
        assert await said_back(reader, writer, b"two") == b"two"
