"""The embedded server is current, and closed to other users of the machine."""

import stat
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ops.launcher.redis_server import LONGEST_PATH, RedisServer, free_port

ONCE = Retry(NoBackoff(), 0)
"""By itself the client library tries again for four seconds who is not let in."""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_gets_in(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    with (
        RedisServer(directory=tmp_path / "data") as server,
        redis.Redis.from_url(server.url, socket_timeout=60) as client,
    ):
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        assert [one for one in process.net_connections("inet") if one.status == "LISTEN"] == []
        assert mode(server.directory) == 0o700
        assert {mode(server.directory / name) for name in ("users.acl", "redis.sock")} == {0o600}
        assert not any(server.password in _text(path) for path in server.directory.iterdir())
        assert not any(server.password in part for part in process.cmdline())
        assert not any(server.password in value for value in process.environ().values())
        stranger = redis.Redis(unix_socket_path=str(server.directory / "redis.sock"), retry=ONCE)
        with pytest.raises(redis.AuthenticationError):
            stranger.ping()
        stranger.close()
        assert int(client.info("server")["valkey_version"].partition(".")[0]) >= 9
        with pytest.raises(redis.ResponseError, match="enable-module-command"):
            client.module_load("anything.so")


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""


def test_every_server_has_a_password_of_its_own() -> None:
    first, second = RedisServer(), RedisServer()
    assert first.password != second.password
    first.clear()
    second.clear()


@pytest.mark.parametrize(
    "name",
    ['white "space" \\ and 100%', "a [pattern] that matches *", "line\nbreak", "long" * 30],
    ids=["odd", "pattern", "lines", "long"],
)
def test_a_path_may_be_odd_or_longer_than_a_socket_s(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    directory.mkdir()
    with (
        RedisServer(directory=directory) as server,
        redis.Redis.from_url(server.url, socket_timeout=60) as client,
    ):
        assert client.set("kept", "yes")
        path = client.connection_pool.connection_kwargs["path"]
        assert len(path) <= LONGEST_PATH
        assert mode(Path(path).parent) == 0o700
        server.kill()
        server.start()
        assert client.get("kept") == b"yes", "the data is in the directory that was asked for"
    assert not Path(path).exists()


def test_a_port_is_of_loopback_and_asks_for_the_password() -> None:
    with RedisServer(port=free_port()) as server:
        assert server.process is not None
        connections = psutil.Process(server.process.pid).net_connections("inet")
        assert {one.laddr.ip for one in connections if one.status == "LISTEN"} == {"127.0.0.1"}
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port, retry=ONCE).ping()
