import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from ops.launcher.acl import CHAIN, Credentials
from ops.launcher.leases import Leases
from ops.launcher.redis_server import RedisServer, free_port
from ops.runtime import health
from ops.runtime.health import NotReady, RedisProblem, Unwell, check, main
from proto.rpc import Lease


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(server.url, socket_timeout=60) as client:
        client.flushall()
        yield client


def write(
    client: "redis.Redis", process_id: str, host: str, pid: int = 1, doors: tuple[str, ...] = ("calls:x",)
) -> None:
    lease = Lease(process_id, process_id.split("-")[0], 1, {}, host, pid, doors)
    client.set(f"quire:alive:{process_id}", lease.encode())
    client.sadd("quire:processes", process_id)


@contextmanager
def answering(status: str) -> Iterator[dict[str, str]]:
    """A gateway on loopback that answers one request; the environment that leads to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(4096).startswith(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1:")
                connection.sendall(f"HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}".encode())

        thread = threading.Thread(target=answer)
        thread.start()
        yield {"QUIRE_HOST": "0.0.0.0", "QUIRE_PORT": str(listener.getsockname()[1])}
        thread.join()


def test_only_a_lease_of_this_machine_counts(server: RedisServer, client: "redis.Redis") -> None:
    here = {"QUIRE_REDIS_URL": server.url}
    with pytest.raises(Unwell, match=f"^no worker on {socket.gethostname()} holds a lease$"):
        check("worker", here)
    write(client, "worker-1", "elsewhere")
    client.set("quire:alive:worker-2", b"no lease at all")
    client.sadd("quire:processes", "worker-2", "worker-3", b"worker-\xff")
    with pytest.raises(Unwell):
        check("worker", here)
    write(client, "worker-4", socket.gethostname(), 17)
    assert check("worker", here) == 17
    assert check("worker", here | {"QUIRE_STREAM_PREFIX": ""}) == 17, "a setting that is empty is not set"
    with pytest.raises(Unwell):
        check("tokenizer", here)
    with pytest.raises(Unwell):
        check("worker", here | {"QUIRE_STREAM_PREFIX": "other:"})
    time.sleep(0.1)
    assert not list(client.keys("*health*")), "a check leaves nothing behind"


def test_a_process_that_takes_no_calls_is_not_ready(server: RedisServer, client: "redis.Redis") -> None:
    """As a worker that loads its model: an upgrade must not stop the old one for it."""
    write(client, "worker-1", socket.gethostname(), 17, doors=())
    with pytest.raises(NotReady, match=f"^the worker on {socket.gethostname()} takes no calls") as problem:
        check("worker", {"QUIRE_REDIS_URL": server.url})
    assert problem.value.pid == 17


def test_a_gateway_must_also_answer(server: RedisServer, client: "redis.Redis") -> None:
    write(client, "gateway-1", socket.gethostname(), 17, doors=())
    here = {"QUIRE_REDIS_URL": server.url, "QUIRE_PORT": str(free_port())}
    with pytest.raises(Unwell, match=r"http://127\.0\.0\.1:\d+/health/live: .*refused"):
        check("gateway", here)
    with pytest.raises(Unwell, match=r"http://\[::1\]:"):
        check("gateway", here | {"QUIRE_HOST": "::1"})
    with answering("503 Service Unavailable") as gateway, pytest.raises(Unwell, match="503"):
        check("gateway", here | gateway)
    with answering("200 OK") as gateway:
        assert check("gateway", here | gateway) == 17


def test_without_redis_nothing_is_known_of_the_process() -> None:
    with pytest.raises(RedisProblem, match="refused"):
        check("worker", {"QUIRE_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"})
    with pytest.raises(RedisProblem):
        check("worker", {"QUIRE_REDIS_URL_FILE": "/nowhere"})


def test_a_redis_that_takes_no_leases_is_not_the_process_s_fault() -> None:
    with RedisServer(options={"maxmemory": "1"}) as full, pytest.raises(RedisProblem, match="OOM"):
        check("worker", {"QUIRE_REDIS_URL": full.url})


@pytest.mark.parametrize("role", CHAIN)
def test_a_service_s_own_user_of_redis_may_check(role: str, tmp_path: Path) -> None:
    credentials = Credentials()
    with RedisServer(users=credentials.acl_file("quire:")) as server:
        file = tmp_path / "url"
        file.write_text(credentials.url(role, server.address) + "\n")
        with pytest.raises(Unwell, match="holds a lease"):
            check(role, {"QUIRE_REDIS_URL_FILE": str(file), "QUIRE_REDIS_URL": "redis://elsewhere"})
        wrong = credentials.url(role, server.address).replace(credentials.passwords[role], "guessed")
        with pytest.raises(RedisProblem, match="WRONGPASS"):
            check(role, {"QUIRE_REDIS_URL": wrong})
        user, password = credentials.url(role, server.address).split("//")[1].split("@")[0].split(":")
        options = f"?username={user}&password={password}"
        with pytest.raises(Unwell, match="holds a lease"):
            check(role, {"QUIRE_REDIS_URL": server.address + options})


def test_a_sentinel_that_is_silent_leaves_time_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SENTINEL_TIMEOUT", 0.05)
    monkeypatch.setattr(health, "TIMEOUT", 3600)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RedisProblem, match="timed out"):
            check("worker", {"QUIRE_REDIS_URL": f"redis+sentinel://{place},{place}/main"})


def test_sentinels_are_asked_within_the_time_of_a_check() -> None:
    """Three of them, and Redis: engines give a check ten seconds."""
    assert 3 * health.SENTINEL_TIMEOUT + 2 * health.TIMEOUT < 10


def test_a_database_of_its_own_is_found(server: RedisServer, client: "redis.Redis") -> None:
    write(client, "worker-1", socket.gethostname(), 17)
    assert check("worker", {"QUIRE_REDIS_URL": f"{server.url}?db=0"}) == 17
    with pytest.raises(Unwell):
        check("worker", {"QUIRE_REDIS_URL": f"{server.url}?db=3"})


def test_a_check_costs_next_to_nothing() -> None:
    """Most of it is imports: without libraries it takes a tenth of what it takes with them."""
    heavy = {"asyncio", "grpc", "redis", "pydantic", "ssl", "http", "email", "logging"}
    code = f"import ops.runtime.health, sys; print(*sys.modules.keys() & {heavy!r})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def check_every(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a check that fails find that so much time has passed since the last one."""
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=count(1000.0, seconds).__next__))


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["subprocess.Popen[bytes]"]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    check_every(30, monkeypatch)
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def checked(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> str:
    """What one check says of the worker; empty if it is well."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main(["worker", "--end-after", "3"])
    return "" if ended.value.code == 0 else str(ended.value.code)


def test_a_process_that_is_well_no_more_is_ended(
    server: RedisServer,
    client: "redis.Redis",
    process: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, away = {"QUIRE_REDIS_URL": server.url}, {"QUIRE_REDIS_URL": f"redis://127.0.0.1:{free_port()}"}
    for _ in range(4):
        assert "holds a lease" in checked(monkeypatch, here), "one that had no lease yet may import libraries"
    write(client, "worker-1", socket.gethostname(), process.pid)
    assert checked(monkeypatch, here) == ""
    client.flushall()
    for _ in range(2):
        assert "ended" not in checked(monkeypatch, here)
    write(client, "worker-1", socket.gethostname(), process.pid)
    assert checked(monkeypatch, here) == "", "three in a row"
    client.flushall()
    for environment in (here, away, away, away, here):
        assert "ended" not in checked(monkeypatch, environment), "Redis's failures do not count"
    assert process.poll() is None
    assert checked(monkeypatch, here).endswith(f"process {process.pid} is ended after 3 checks")
    assert process.wait(10) == -signal.SIGKILL
    assert "ended" not in checked(monkeypatch, here), "and then the next one begins anew"


def test_a_process_that_loads_is_left_alone_until_its_lease_is_gone(
    server: RedisServer,
    client: "redis.Redis",
    process: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = {"QUIRE_REDIS_URL": server.url}
    for before in ("calls:x",), ():
        write(client, "worker-1", socket.gethostname(), process.pid, doors=before)
        checked(monkeypatch, here)
        write(client, "worker-1", socket.gethostname(), process.pid, doors=())
        for _ in range(4):
            assert checked(monkeypatch, here).endswith("it starts, or stops")
    assert process.poll() is None
    client.flushall()
    for _ in range(3):
        checked(monkeypatch, here)
    assert process.wait(10) == -signal.SIGKILL


def test_a_process_that_is_checked_often_has_a_minute_too(
    server: RedisServer,
    client: "redis.Redis",
    process: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As while its container starts: a library may hold it up for longer than its lease lasts."""
    check_every(2, monkeypatch)
    here = {"QUIRE_REDIS_URL": server.url}
    write(client, "worker-1", socket.gethostname(), process.pid, doors=())
    checked(monkeypatch, here)
    client.flushall()
    for _ in range(30):
        assert "ended" not in checked(monkeypatch, here)
    assert process.poll() is None
    assert checked(monkeypatch, here).endswith("is ended after 31 checks")
    assert process.wait(10) == -signal.SIGKILL


def test_only_the_process_that_was_well_is_ended(
    server: RedisServer,
    client: "redis.Redis",
    process: "subprocess.Popen[bytes]",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its number may be another's by now."""
    here = {"QUIRE_REDIS_URL": server.url}
    write(client, "worker-1", socket.gethostname(), process.pid)
    assert checked(monkeypatch, here) == ""
    (memory,) = tmp_path.iterdir()
    pid, failed, since, _ = memory.read_text().split()
    memory.write_text(f"{pid} {failed} {since} earlier")
    client.flushall()
    for _ in range(4):
        assert "ended" not in checked(monkeypatch, here)
    assert process.poll() is None


def test_without_being_asked_to_a_check_ends_nobody(
    server: RedisServer,
    client: "redis.Redis",
    process: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(client, "worker-1", socket.gethostname(), process.pid)
    assert checked(monkeypatch, {"QUIRE_REDIS_URL": server.url}) == ""
    client.flushall()
    for _ in range(4):
        with pytest.raises(SystemExit):
            main(["worker"])
    assert process.poll() is None


async def test_only_the_lease_of_the_dead_is_ended(server: RedisServer, client: "redis.Redis") -> None:
    host, mine = socket.gethostname(), os.getpid()
    write(client, "worker-1", host, mine)
    write(client, "worker-2", host, mine + 1)
    write(client, "worker-3", "elsewhere", mine)
    client.set("quire:alive:worker-4", b"no lease at all")
    client.sadd("quire:processes", "worker-4")
    leases = Leases(server.url, "quire:")
    await leases.bury(mine)
    assert [holder.process_id for holder in await leases.holders()] == ["worker-2", "worker-3"]
    await leases.bury(mine + 1, killed=True)
    assert [holder.process_id for holder in await leases.holders()] == ["worker-3"]
    assert list(client.keys("quire:alive:*:killed")) == [b"quire:alive:worker-2:killed"]
    assert 0 < client.ttl("quire:alive:worker-2:killed") <= 600
    await leases.aclose()
