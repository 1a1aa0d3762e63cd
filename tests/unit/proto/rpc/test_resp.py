"""Connections: over TLS nobody is talked to whom nobody has certified; and what Redis says unasked."""

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from ops.launcher.acl import HEALTH
from ops.launcher.leases import Leases
from ops.launcher.redis_server import RedisServer, free_port
from ops.runtime.health import RedisProblem, Unwell, check
from ops.runtime.settings import ProcessSettings
from proto.rpc import BusAway, Node, RedisBus, resp
from proto.rpc.bounded_reader import size_of
from proto.rpc.bus import MAX_ENTRY_BYTES
from proto.rpc.resp import COMING_SECONDS, Connection
from tests.support.virtual import virtual


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `ours.pem` and `other.pem`, each a certificate of 127.0.0.1 and its own CA, and keys."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ours", "other"):
        made = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}"]
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        known = ["-addext", "subjectAltName=IP:127.0.0.1"]
        command = ["openssl", "req", "-x509", *kind, *made, *known]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


@contextlib.asynccontextmanager
async def over_tls(server: RedisServer, certificates: Path, client_ca: str = "") -> AsyncIterator[str]:
    """The server behind TLS, as an end of it before a Unix socket; its URL."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "ours.pem", certificates / "ours.key")
    if client_ca:
        context.load_verify_locations(certificates / client_ca)
        context.verify_mode = ssl.CERT_REQUIRED

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(server.address.removeprefix("unix://"))
        await asyncio.gather(carry(reader, back), carry(there, writer))

    listener = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    yield f"rediss://default:{server.password}@127.0.0.1:{port}/0"
    listener.close()


async def test_a_certified_redis_carries_everything(redis_server: RedisServer, certificates: Path) -> None:
    async with over_tls(redis_server, certificates) as url:
        settings = ProcessSettings(redis_url=url, redis_ca_file=certificates / "ours.pem")
        async with Node(RedisBus(settings.redis_url, "test-tls:"), "gateway", lease_seconds=60) as node:
            leases = Leases(settings.redis_url, "test-tls:")
            assert [lease.process_id for lease in await leases.holders()] == [node.id]
            await leases.aclose()


@pytest.mark.parametrize("ca", ["other.pem", None])
async def test_one_that_we_do_not_trust_gets_no_password(
    redis_server: RedisServer, certificates: Path, ca: str | None
) -> None:
    async with over_tls(redis_server, certificates) as url:
        settings = ProcessSettings(redis_url=url, redis_ca_file=certificates / ca if ca else None)
        with pytest.raises(BusAway, match="certificate") as refused:
            await Connection.open(settings.redis_url)
        assert redis_server.password not in str(refused.value)


async def test_a_redis_may_ask_for_a_certificate(redis_server: RedisServer, certificates: Path) -> None:
    async with over_tls(redis_server, certificates, client_ca="other.pem") as url:
        trusted = f"{url}?ssl_ca_certs={certificates / 'ours.pem'}"
        with pytest.raises(BusAway):
            await Connection.open(trusted)
        own = f"&ssl_certfile={certificates / 'other.pem'}&ssl_keyfile={certificates / 'other.key'}"
        connection = await Connection.open(trusted + own)
        assert connection.client_id
        connection.close()


async def test_a_health_check_goes_over_tls_too(redis_server: RedisServer, certificates: Path) -> None:
    async with over_tls(redis_server, certificates) as url:
        for ca, kind, reason in (
            ("ours.pem", Unwell, "holds a lease"),
            ("other.pem", RedisProblem, "certificate"),
        ):
            environment = {"QUIRE_REDIS_URL": url, "QUIRE_REDIS_CA_FILE": str(certificates / ca)}
            with pytest.raises(kind, match=reason):
                await asyncio.to_thread(
                    check, "worker", environment | {"QUIRE_STREAM_PREFIX": "test-health:"}
                )


@contextlib.asynccontextmanager
async def answering(*pieces: bytes, hang_up: bool = True) -> AsyncIterator[str]:
    """A server that says this to whoever connects; its URL."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if not hang_up:
                await reader.read()
        writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}/0"
    listener.close()


@pytest.mark.parametrize(
    "said",
    [
        "DENIED Redis is running in protected mode because protected mode is enabled",
        "ERR max number of clients reached",
    ],
)
async def test_why_redis_refuses_a_connection_is_told(said: str) -> None:
    async with answering(f"-{said}\r\n".encode()) as url:
        with pytest.raises(BusAway, match=said):
            await Connection.open(url)


async def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(b"-ERR here I am\r\n") as url:
        port = int(url.split(":")[-1].split("/")[0])
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in ("127.0.0.2", "127.0.0.1")
        ]
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", AsyncMock(return_value=found))
        with pytest.raises(BusAway, match="here I am"):
            await Connection.open(url.replace("127.0.0.1", "redis.test"))
        found.pop()
        with pytest.raises(BusAway, match=r"redis\.test:\d+ is unreachable"):
            await Connection.open(url.replace("127.0.0.1", "redis.test"))


async def test_an_address_that_loses_all_packets_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resp, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(resp, "ADDRESS_SECONDS", 0.1)
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def lossy(protocol: Any, host: str, port: int, **options: Any) -> Any:
        if host == "127.0.0.2":
            await asyncio.sleep(60)
        return await connect(protocol, host, port, **options)

    async with answering(b"-ERR here I am\r\n") as url:
        port = int(url.split(":")[-1].split("/")[0])
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in ("127.0.0.2", "127.0.0.1")
        ]
        monkeypatch.setattr(loop, "getaddrinfo", AsyncMock(return_value=found))
        monkeypatch.setattr(loop, "create_connection", lossy)
        with pytest.raises(BusAway, match="here I am"):
            await Connection.open(url.replace("127.0.0.1", "redis.test"))
        found.pop()
        with pytest.raises(BusAway, match="does not answer"):
            await Connection.open(url.replace("127.0.0.1", "redis.test"))


async def test_a_name_that_nobody_knows_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resp, "CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lambda *_, **__: asyncio.sleep(60))
    with pytest.raises(BusAway, match=r"redis\.test:6379 does not answer"):
        await Connection.open("redis://redis.test")


async def unasked(connection: Connection, data: bytes) -> None:
    """Something comes while nothing is awaited."""
    connection.data_received(data)
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"-ERR max number of clients reached\r\n", "max number of clients"),
        (b"HTTP/1.1 400 Bad\r\n", "no Redis"),
    ],
)
async def test_what_comes_unasked_ends_the_connection(
    redis_server: RedisServer, data: bytes, reason: str
) -> None:
    connection = await Connection.open(redis_server.url)
    await unasked(connection, data)
    assert not connection.open_still
    await asyncio.sleep(0.01)
    with pytest.raises(BusAway, match=reason):
        await connection.execute([("PING",)])


async def test_a_web_server_is_no_redis() -> None:
    async with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n", hang_up=False) as url:
        with pytest.raises(BusAway, match="no Redis"):
            await Connection.open(url)


def connected() -> tuple[Connection, Mock]:
    """A connection that a test feeds, and its transport."""
    connection, transport = Connection(), Mock()
    transport.is_closing.return_value = False
    transport.abort.side_effect = lambda: connection.connection_lost(None)
    connection.connection_made(transport)
    return connection, transport


async def test_a_refusal_in_place_of_the_first_reply_of_several_is_told() -> None:
    connection, _ = connected()
    future = connection.send([("PING",), ("CLIENT", "ID")])
    connection.data_received(b"-ERR max number of clients reached\r\n")
    connection.connection_lost(None)
    with pytest.raises(BusAway, match="max number of clients"):
        await future


@virtual
async def test_a_long_reply_that_comes_slowly_is_waited_for() -> None:
    """An entry that is too large for the time of a read would be read again and again otherwise."""
    size = MAX_ENTRY_BYTES + 1
    parts = [b"*2\r\n$%d\r\n" % size, *[b"x" * (size // 8)] * 8, b"x" * (size % 8) + b"\r\n:7\r\n"]
    connection, _ = connected()
    reading = asyncio.ensure_future(connection.execute([("XREAD",)], timeout=COMING_SECONDS))
    for part in parts:
        await asyncio.sleep(0.3 * COMING_SECONDS)
        connection.data_received(part)
    (reply,) = await reading
    assert [size_of(reply[0]), reply[1]] == [size, 7]


@virtual
async def test_a_long_reply_that_stops_coming_is_lost() -> None:
    connection, transport = connected()
    reading = asyncio.ensure_future(connection.execute([("XREAD",)], timeout=COMING_SECONDS))
    for part in (b"*2\r\n$5000\r\nx", b"x"):
        await asyncio.sleep(0.3 * COMING_SECONDS)
        connection.data_received(part)
    assert not transport.abort.called
    with pytest.raises(BusAway, match="lost"):
        await reading
    assert asyncio.get_running_loop().time() < 5 * COMING_SECONDS


async def test_a_user_may_have_no_password() -> None:
    users = f"user default off\nuser anyone on nopass ~* &* +@all\n{HEALTH}\n"
    with RedisServer(users=users, port=free_port()) as server:
        connection = await Connection.open(f"redis://anyone@127.0.0.1:{server.port}")
        assert await connection.execute([("ACL", "WHOAMI")]) == [b"anyone"]
        connection.close()
