"""A primary, a replica and three Sentinels on loopback."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import redis

from ops.launcher.redis_server import RedisServer, find_binary, free_port
from tests.support.cluster import LIMIT, wait_until

NAME = "quire-primary"
SECRET = "of-the-sentinels"
DOWN_MS = 500


class Watched:
    """Servers of which one is the primary, and the Sentinels that know which one."""

    def __init__(self, folder: Path, binary: Path | None = None) -> None:
        self._folder, self._binary = folder, binary or find_binary()
        self.servers: list[RedisServer] = []
        self.sentinels: list[subprocess.Popen[bytes]] = []
        self.ports: list[int] = []

    def url(self, ports: list[int] | None = None) -> str:
        """As processes are given it. `ports`: of the Sentinels."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports or self.ports)
        password = self.servers[0].password
        return f"redis+sentinel://default:{password}@{hosts}/{NAME}/0?sentinel_password={SECRET}"

    def start(self) -> None:
        """Start all, and wait until each Sentinel knows of all servers and Sentinels."""
        for number in range(2):
            folder = self._folder / str(number)
            folder.mkdir(parents=True)
            options = {"repl-diskless-sync-delay": "0"}
            server = RedisServer(self._binary, folder, port=free_port(), options=options)
            server.password = self.servers[0].password if self.servers else server.password
            self.servers.append(server)
        primary, replica = self.servers
        for server in self.servers:
            server._options |= {"masterauth": primary.password}
        replica._options |= {"replicaof": f"127.0.0.1 {primary.port}"}
        for server in self.servers:
            server.start()
        self.ports = [free_port() for _ in range(3)]
        self.sentinels = [self._sentinel(number, port) for number, port in enumerate(self.ports)]
        wait_until(lambda: all(self._knows_all(port) for port in self.ports))

    def _sentinel(self, number: int, port: int) -> "subprocess.Popen[bytes]":
        primary, folder = self.servers[0], self._folder / f"sentinel-{number}"
        folder.mkdir()
        lines = (
            *(f"port {port}", "bind 127.0.0.1", f"dir {folder}", f"logfile {folder / 'log'}"),
            *(f"requirepass {SECRET}", f"sentinel sentinel-pass {SECRET}"),
            f"sentinel monitor {NAME} 127.0.0.1 {primary.port} 2",
            f"sentinel auth-pass {NAME} {primary.password}",
            f"sentinel down-after-milliseconds {NAME} {DOWN_MS}",
            f"sentinel failover-timeout {NAME} 5000",
        )
        (folder / "sentinel.conf").write_text("\n".join(lines) + "\n")
        return subprocess.Popen([self._binary, folder / "sentinel.conf", "--sentinel"])

    def _knows_all(self, port: int) -> bool:
        try:
            facts = self._ask(port, "MASTER", NAME)
        except redis.RedisError:
            return False
        facts = dict(zip(facts[::2], facts[1::2], strict=True)) if isinstance(facts, list) else facts
        return int(facts["num-slaves"]) == 1 and int(facts["num-other-sentinels"]) == 2

    def _ask(self, port: int, *question: str) -> Any:
        client: Any = redis.Redis(port=port, password=SECRET, socket_timeout=LIMIT, decode_responses=True)
        with closing(client):
            return client.execute_command("SENTINEL", *question)

    def fail_over(self) -> None:
        """Have the replica made the primary while the primary lives."""
        self._ask(self.ports[0], "FAILOVER", NAME)

    def primary(self, port: int | None = None) -> int:
        """Port of the primary, as one Sentinel has it."""
        return int(self._ask(port or self.ports[0], "GET-MASTER-ADDR-BY-NAME", NAME)[1])

    def stop(self) -> None:
        for one in self.sentinels:
            one.kill()
            one.wait()
        for server in self.servers:
            server.stop()


def running(folder: Path, binary: Path | None) -> Iterator[Watched]:
    watched = Watched(folder, binary)
    try:
        watched.start()
        yield watched
    finally:
        watched.stop()
