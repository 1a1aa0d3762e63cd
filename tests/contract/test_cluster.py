"""A real Redis Cluster of three servers. Each deployment lies on the server of its prefix's hash tag."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ops.launcher.acl import rules
from ops.launcher.leases import Leases
from ops.runtime.health import check
from proto.rpc import BusAway, Node, RedisBus
from proto.rpc.bus import door_of
from tests.contract.conftest import DEBIAN, LEASE, LIMIT
from tests.contract.test_restarts import resumed
from tests.support.cluster import Cluster, running


@pytest.fixture(scope="module", params=[None, *([Path(DEBIAN)] if DEBIAN else [])], ids=str)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from running(tmp_path_factory.mktemp("cluster"), request.param)


def keys_by_server(cluster: Cluster) -> list[set[str]]:
    """Prefixes of the keys that each server has."""
    return [{key.decode().partition(":")[0] + ":" for key in client.keys("*")} for client in cluster.clients]


async def ask(stub: Any, echo: SimpleNamespace, text: str) -> Any:
    """Ask until there is an answer, as services do."""
    return await resumed(lambda: stub.Unary(echo.Text(text=text), timeout=LIMIT, wait_for_ready=True))


@contextlib.asynccontextmanager
async def served(bus: RedisBus, echo: Any, servicer: Any) -> AsyncIterator[tuple[Node, Node, Any]]:
    """A server, a client, and the client's stub of the service."""
    async with (
        Node(bus, "server", lease_seconds=LEASE) as server,
        Node(bus, "client", lease_seconds=LEASE) as client,
    ):
        door = server.server(capacity=10)
        echo.add_EchoServicer_to_server(servicer, door)
        await door.start()
        yield server, client, echo.EchoStub(client.channel())


async def test_deployments_spread_over_the_servers(cluster: Cluster, echo: Any, servicer: Any) -> None:
    """All of them have the URL of the same server, which leads to the others."""
    prefixes = cluster.prefixes()
    async with asyncio.timeout(LIMIT):
        for prefix in prefixes:
            bus = RedisBus(cluster.url(0), prefix)
            async with Node(bus, "server", lease_seconds=LEASE) as server, Node(bus, "client") as client:
                door = server.server(capacity=10)
                echo.add_EchoServicer_to_server(servicer, door)
                await door.start()
                answer = await ask(echo.EchoStub(client.channel()), echo, "hello")
                assert (answer.text, answer.count) == ("hello", 1)
                leases = Leases(cluster.url(1), prefix)
                assert [one.service for one in await leases.holders()] == ["client", "server"]
                await leases.aclose()
                environment = {"QUIRE_REDIS_URL": cluster.url(2), "QUIRE_STREAM_PREFIX": prefix}
                assert await asyncio.to_thread(check, "server", environment) == os.getpid()
                at = cluster.home(prefix)
                assert prefix in keys_by_server(cluster)[at]
                assert all(prefix not in keys for keys in keys_by_server(cluster)[:at])
    assert all(found <= {prefix} for found, prefix in zip(keys_by_server(cluster), prefixes, strict=True))


async def test_a_prefix_without_a_hash_tag_is_refused_with_the_reason(cluster: Cluster) -> None:
    with pytest.raises(BusAway, match=r"QUIRE_STREAM_PREFIX=quire: has no hash tag, as in {one}:"):
        await RedisBus(cluster.url(0)).connect("client-1")


async def test_a_process_needs_no_more_rights_there(cluster: Cluster) -> None:
    prefix = cluster.prefixes()[2]
    for client in cluster.clients:
        client.execute_command("ACL", "SETUSER", "worker", "on", ">secret", *rules("worker", prefix))
    url = cluster.url(0).replace(f"default:{cluster.servers[0].password}", "worker:secret")
    link = await RedisBus(url, prefix).connect("worker-1")
    await link.take_lease(b"{}", LIMIT)
    await link.join(door := door_of("Worker", "m"))
    assert await link.pending(door) == []
    await link.close(goodbye=True)


async def test_calls_go_on_after_the_server_of_the_url_is_lost_and_replaced(
    tmp_path: Path, echo: Any, servicer: Any
) -> None:
    """Its replica has the keys, and every other server leads there."""
    with contextlib.contextmanager(running)(tmp_path, None) as cluster:
        cluster.add_replica(0)
        bus = RedisBus(cluster.url(0), cluster.prefixes()[0])
        async with asyncio.timeout(LIMIT), served(bus, echo, servicer) as (server, client, stub):
            assert (await ask(stub, echo, "before")).text == "before"
            await asyncio.to_thread(cluster.servers[0].kill)
            assert (await ask(stub, echo, "after")).text == "after"
            assert (server.epoch, client.epoch) == (2, 2), "they drop their calls once"


async def test_a_server_that_cannot_be_reached_for_a_moment_costs_no_lease(cluster: Cluster) -> None:
    """Meanwhile another one answers, which has another history and not the keys."""
    link = await RedisBus(cluster.url(0), cluster.prefixes()[0]).connect("worker-1")
    await link.take_lease(b"{}", LEASE)
    link._control.close()
    link._control._place.url = cluster.url(1)
    with pytest.raises(BusAway, match="MOVED"):
        await link.renew_lease(b"{}", LEASE)
    assert await link.renew_lease(b"{}", LEASE)
    await link.close(goodbye=True)


async def test_calls_go_on_where_their_keys_move(cluster: Cluster, echo: Any, servicer: Any) -> None:
    prefix = cluster.prefixes()[1]
    bus = RedisBus(cluster.url(0), prefix)
    async with asyncio.timeout(LIMIT), served(bus, echo, servicer) as (server, client, stub):
        assert (await ask(stub, echo, "before")).text == "before"
        epochs = server.epoch, client.epoch
        await asyncio.to_thread(cluster.move, prefix, 2)
        assert (await ask(stub, echo, "after")).text == "after"
        assert (server.epoch, client.epoch) > epochs  # what ran was dropped, and made again
        assert prefix in keys_by_server(cluster)[2]
        assert prefix not in keys_by_server(cluster)[1]
