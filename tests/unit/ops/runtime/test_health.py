import os
import socket
from collections.abc import Iterator

import pytest
import redis

from ops.launcher.redis_server import RedisServer, free_port
from ops.runtime.health import problem_of
from ops.runtime.leases import Leases, without_password
from ops.runtime.settings import ProcessSettings
from proto.rpc import Lease


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        yield client


def write(client: "redis.Redis", process_id: str, host: str, pid: int = 1) -> None:
    lease = Lease(process_id, process_id.split("-")[0], 1, {}, host, pid)
    client.set(f"quire:alive:{process_id}", lease.encode())


async def test_only_a_lease_of_this_machine_counts(server: RedisServer, client: "redis.Redis") -> None:
    settings = ProcessSettings(redis_url=server.url)
    assert await problem_of("worker", settings) == f"no worker on {socket.gethostname()} holds a lease"
    write(client, "worker-1", "elsewhere")
    assert await problem_of("worker", settings) is not None
    write(client, "worker-2", socket.gethostname())
    assert await problem_of("worker", settings) is None
    assert await problem_of("tokenizer", settings) is not None


async def test_a_gateway_must_also_answer(
    server: RedisServer, client: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_PORT", str(free_port()))
    write(client, "gateway-1", socket.gethostname())
    problem = await problem_of("gateway", ProcessSettings(redis_url=server.url))
    assert problem is not None
    assert "http://127.0.0.1:" in problem
    assert "/health/live" in problem
    monkeypatch.setenv("QUIRE_HOST", "::1")
    assert "http://[::1]:" in (await problem_of("gateway", ProcessSettings(redis_url=server.url)) or "")


async def test_without_redis_nobody_is_well() -> None:
    settings = ProcessSettings(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    problem = await problem_of("worker", settings)
    assert problem is not None
    assert "unreachable" in problem


async def test_only_the_lease_of_the_dead_is_ended(server: RedisServer, client: "redis.Redis") -> None:
    host, mine = socket.gethostname(), os.getpid()
    write(client, "worker-1", host, mine)
    write(client, "worker-2", host, mine + 1)
    write(client, "worker-3", "elsewhere", mine)
    client.set("quire:alive:worker-4", b"no lease at all")
    leases = Leases(server.url, "quire:")
    await leases.bury(mine)
    assert [holder.process_id for holder in await leases.holders()] == ["worker-2", "worker-3"]
    await leases.aclose()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:secret@host:1/0", "redis://:***@host:1/0"),
        ("redis://user:secret@host:1/0", "redis://user:***@host:1/0"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
