"""A Redis Cluster on loopback: its servers divide the slots evenly, in their order."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from ops.launcher.redis_server import RedisServer, free_port

SLOTS = 16384
LIMIT = 60.0


class Cluster:
    """Primaries of a cluster."""

    def __init__(self, folder: Path, binary: Path | None = None, count: int = 3) -> None:
        self._binary, self._folder, self._primaries = binary, folder, count
        self.servers = [self._server(folder / str(number)) for number in range(count)]
        self.clients: list[Any] = []

    def _server(self, folder: Path) -> RedisServer:
        folder.mkdir(parents=True)
        options = {"cluster-enabled": "yes", "cluster-port": str(free_port()), "appendonly": "no"}
        return RedisServer(self._binary, folder, port=free_port(), options=options)

    def url(self, number: int) -> str:
        """A server's address over TCP, with its password, as processes are given it."""
        server = self.servers[number]
        return f"redis://default:{server.password}@127.0.0.1:{server.port}"

    def start(self) -> None:
        """Start the servers, let them meet, and wait until each knows of all."""
        for server in self.servers:
            server.start()
            self._share_password(server)
        ends = [SLOTS * number // len(self.servers) for number in range(len(self.servers) + 1)]
        for client, first, last in zip(self.clients, ends, ends[1:], strict=False):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
        for server in self.servers[1:]:
            self._meet(server)
        wait_until(lambda: all(self._whole(client) for client in self.clients))

    def _share_password(self, server: RedisServer) -> None:
        """A connection follows to another server with the password that it has."""
        password = self.servers[0].password
        client = redis.Redis.from_url(server.url, socket_timeout=LIMIT)
        client.execute_command("ACL", "SETUSER", "default", "on", f">{password}", "~*", "&*", "+@all")
        server.password = password
        self.clients.append(redis.Redis.from_url(server.url, socket_timeout=LIMIT))

    def _meet(self, server: RedisServer) -> None:
        bus = server._options["cluster-port"]
        self.clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port, bus)

    def add_replica(self, number: int) -> None:
        """Add a server that soon takes the place of a primary when that is lost."""
        primary = self.clients[number].execute_command("CLUSTER", "MYID").decode()
        server = self._server(self._folder / "replica").start()
        self.servers.append(server)
        self._share_password(server)
        self._meet(server)
        wait_until(lambda: all(self._whole(client) for client in self.clients))
        for client in self.clients:
            client.config_set("masterauth", server.password)
            client.config_set("cluster-node-timeout", 1000)
        self.clients[-1].execute_command("CLUSTER", "REPLICATE", primary)
        wait_until(lambda: self.clients[-1].info("replication")["master_link_status"] == "up")

    def _whole(self, client: Any) -> bool:
        info = client.execute_command("CLUSTER", "INFO")
        info = info if isinstance(info, dict) else dict(line.split(":", 1) for line in info.decode().split())
        return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == len(self.servers)

    def home(self, prefix: str) -> int:
        """Number of the server that has the keys of a prefix."""
        return key_slot(prefix.encode()) * self._primaries // SLOTS

    def prefixes(self) -> list[str]:
        """A prefix for each server, whose keys lie there."""
        found: dict[int, str] = {}
        number = 0
        while len(found) < self._primaries:
            found.setdefault(self.home(prefix := f"{{quire-{number}}}:"), prefix)
            number += 1
        return [found[number] for number in range(self._primaries)]

    def move(self, prefix: str, target: int) -> None:
        """Give the slot of a prefix to another server, with its keys."""
        slot, source = key_slot(prefix.encode()), self.home(prefix)
        ids = [client.execute_command("CLUSTER", "MYID").decode() for client in self.clients]
        self.clients[target].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        self.clients[source].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        port = self.servers[target].port
        while keys := self.clients[source].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            arguments = ["127.0.0.1", port, "", 0, 5000, "REPLACE", "AUTH", self.servers[0].password]
            self.clients[source].execute_command("MIGRATE", *arguments, "KEYS", *keys)
        for client in (self.clients[target], self.clients[source], *self.clients):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        for server in self.servers:
            server.stop()


def running(folder: Path, binary: Path | None) -> Iterator[Cluster]:
    cluster = Cluster(folder, binary)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
