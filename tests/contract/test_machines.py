"""Two machines, of which one can vanish: packets are lost, and nobody is told.

The other machine is a network namespace with a Redis. What is sent to an address that the wire does not know
is lost without an answer, as if the machine had no power.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from ops.launcher.redis_server import find_binary
from proto.rpc import BusAway, Node, RedisBus, line, redis_bus, resp
from proto.rpc.line import Line

NOBODY = "02:00:00:00:00:01"
"""A hardware address that no machine has."""


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


class Machine:
    """Another machine, with a Redis at `url`."""

    def __init__(self, number: int) -> None:
        self.name, self._here, self._there = f"quire{number}", f"quire{number}a", f"quire{number}b"
        self._net = f"10.213.{number % 256}"
        self.url = f"redis://{self._net}.2:6379/0"
        self._server: subprocess.Popen[bytes] | None = None

    def make(self) -> str:
        """Why it cannot be made; empty if it is there."""
        inside = ("-n", self.name)
        for words in (
            ("netns", "add", self.name),
            ("link", "add", self._here, "type", "veth", "peer", "name", self._there, "netns", self.name),
            ("addr", "add", f"{self._net}.1/24", "dev", self._here),
            ("link", "set", self._here, "up"),
            (*inside, "addr", "add", f"{self._net}.2/24", "dev", self._there),
            (*inside, "link", "set", self._there, "up"),
        ):
            if (done := ip(*words)).returncode:
                return done.stderr.strip()
        self.start()
        return ""

    def start(self) -> None:
        options = ("--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", "/tmp")
        command = ["ip", "netns", "exec", self.name, str(find_binary()), *options]
        self._server = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def vanish(self) -> None:
        ip("neigh", "replace", f"{self._net}.2", "lladdr", NOBODY, "dev", self._here, "nud", "permanent")
        peer = (f"{self._net}.1", "lladdr", NOBODY, "dev", self._there, "nud", "permanent")
        ip("-n", self.name, "neigh", "replace", *peer)

    def come_back(self) -> None:
        ip("neigh", "del", f"{self._net}.2", "dev", self._here)
        ip("-n", self.name, "neigh", "del", f"{self._net}.1", "dev", self._there)

    def remove(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        ip("netns", "del", self.name)
        ip("link", "del", self._here)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip`, of iproute2")
    machine = Machine(os.getpid())
    try:
        if reason := machine.make():
            pytest.skip(f"no network namespace can be made here: {reason}")
        yield machine
    finally:
        machine.remove()


async def answering(url: str) -> Line:
    found = Line(url)
    while True:
        with contextlib.suppress(ConnectionError):
            await found.execute(("PING",))
            return found
        await asyncio.sleep(0.05)


async def is_away(node: Node) -> bool:
    try:
        await node.leases()
    except BusAway:
        return True
    return False


async def test_an_idle_connection_to_a_machine_that_vanished_is_given_up(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the first command after an hour would be lost, though Redis is at another place by now."""
    for name, value in (("IDLE_SECONDS", 1), ("ASK_SECONDS", 1), ("ASKED", 2)):
        monkeypatch.setattr(resp, name, value)
    idle = await answering(machine.url)
    machine.vanish()
    try:
        async with asyncio.timeout(60):
            while idle.connection is not None and idle.connection.open_still:
                await asyncio.sleep(0.05)
    finally:
        machine.come_back()
    assert await idle.execute(("PING",)) == [b"PONG"]
    idle.close()


async def test_a_redis_that_vanishes_is_away_and_comes_back(
    machine: Machine, echo: SimpleNamespace, servicer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is refused, and no connection is reset: only time tells."""
    for module, name in ((line, "REPLY_SECONDS"), (redis_bus, "REPLY_SECONDS"), (resp, "CONNECT_SECONDS")):
        monkeypatch.setattr(module, name, 2)
    (await answering(machine.url)).close()
    async with (
        Node(RedisBus(machine.url), "server", lease_seconds=1.0) as serving,
        Node(RedisBus(machine.url), "client", lease_seconds=1.0) as node,
    ):
        server = serving.server()
        echo.add_EchoServicer_to_server(servicer, server)
        await server.start()
        stub = echo.EchoStub(node.channel())
        assert (await stub.Unary(echo.Text(text="before"), wait_for_ready=True)).text == "before"
        epoch = serving.epoch
        waiting = asyncio.ensure_future(stub.Unary(echo.Text(text="wait"), wait_for_ready=True))
        await servicer.started.wait()
        machine.vanish()
        try:
            async with asyncio.timeout(60):
                while serving.holds_lease or not await is_away(node):
                    await asyncio.sleep(0.05)
        finally:
            machine.come_back()
        with pytest.raises(grpc.aio.AioRpcError, match="lost its lease"):
            await waiting
        async with asyncio.timeout(60):
            await servicer.cancelled.wait()
            assert (await stub.Unary(echo.Text(text="after"), wait_for_ready=True)).text == "after"
        assert serving.epoch > epoch
        await server.stop(None)
