"""A Redis that has no room: it refuses what needs memory until somebody frees some."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio

from ops.launcher.redis_server import RedisServer
from proto.rpc import Node, RedisBus
from proto.rpc.bus import Batch, Refused, door_of
from proto.rpc.errors import BusAway
from proto.rpc.redis_bus import LAST_ID
from tests.contract.conftest import LEASE, LIMIT
from tests.contract.test_restarts import resumed

DOOR = door_of("contract.Echo")
MIB = 2**20


@pytest.fixture
def mortal_redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(directory=tmp_path) as server:
        yield server


@pytest.fixture
async def limits(mortal_redis: RedisServer) -> AsyncIterator[Any]:
    client = redis.asyncio.Redis.from_url(mortal_redis.url, socket_timeout=60)
    yield client
    await client.aclose()


async def leave(limits: Any, room: int) -> None:
    """Let Redis take so many bytes more, or nothing at all if it is negative."""
    used = (await limits.info("memory"))["used_memory"]
    await limits.config_set("maxmemory", max(1, used + room))


@contextlib.asynccontextmanager
async def served(url: str, echo: Any, servicer: Any) -> AsyncIterator[Any]:
    """A client, and a server that takes no calls yet."""
    async with (
        Node(RedisBus(url), "server", lease_seconds=LEASE) as server,
        Node(RedisBus(url), "client", lease_seconds=LEASE) as client,
    ):
        door = server.server(capacity=0)
        echo.add_EchoServicer_to_server(servicer, door)
        await door.start()
        yield SimpleNamespace(server=server, client=client, door=door, stub=echo.EchoStub(client.channel()))


@contextlib.asynccontextmanager
async def linked(url: str, *names: str) -> AsyncIterator[list[Any]]:
    """Processes that do nothing by themselves."""
    links = [await RedisBus(url).connect(name) for name in names]
    for link in links:
        await link.take_lease(b"{}", LEASE)
    yield links
    for link in links:
        await link.close(goodbye=True)


async def test_a_full_redis_empties_itself(
    mortal_redis: RedisServer, echo: SimpleNamespace, servicer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It refuses what needs memory; leases are renewed, calls are taken, and what was read is dropped."""
    limits = redis.asyncio.Redis.from_url(mortal_redis.url, socket_timeout=60)
    used = (await limits.info("memory"))["used_memory"]
    await limits.config_set("maxmemory", used + 8 * 2**20)
    data = bytes(100_000)
    async with (
        Node(RedisBus(mortal_redis.url), "server", lease_seconds=LEASE) as server,
        Node(RedisBus(mortal_redis.url), "client", lease_seconds=LEASE) as client,
    ):
        served = server.server(capacity=0)
        echo.add_EchoServicer_to_server(servicer, served)
        await served.start()
        stub = echo.EchoStub(client.channel())
        calls = []
        while not client._keeper.is_away:
            calls.append(stub.Collect([echo.Text(data=data)], wait_for_ready=True))
            await asyncio.sleep(0.01)
        calls += [stub.Collect([echo.Text(data=data)], wait_for_ready=True) for _ in range(10)]
        await asyncio.sleep(1.0)
        assert 40 < await limits.xlen(f"quire:{door_of('contract.Echo')}") <= len(calls) - 10, "it is full"
        with pytest.raises(BusAway):
            await client.leases()
        served.set_capacity(4)
        async with asyncio.timeout(LIMIT):
            assert [(await call).count for call in calls] == [1] * len(calls)
        assert (client.epoch, server.epoch) == (1, 1)
    said = [record.message[:20] for record in caplog.records]
    assert said.count("the bus is away: OOM") <= said.count("the bus is back") + 2, "each says so once"
    await limits.aclose()


async def test_calls_that_piled_up_go_out_as_far_as_there_is_room(
    mortal_redis: RedisServer, limits: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """All of them together would never have room."""
    async with served(mortal_redis.url, echo, servicer) as world:
        await leave(limits, -1)
        data = secrets.token_bytes(3 * MIB)
        calls = [world.stub.Collect([echo.Text(data=data)], wait_for_ready=True)]
        await until(lambda: world.client._keeper.is_away, "there is no room")
        calls += [world.stub.Collect([echo.Text(data=data)], wait_for_ready=True) for _ in range(11)]
        await leave(limits, 16 * MIB)
        world.door.set_capacity(1)
        async with asyncio.timeout(LIMIT):
            assert [(await call).count for call in calls] == [1] * len(calls)
        assert (world.client.epoch, world.server.epoch) == (1, 1)


async def test_a_call_that_nobody_wants_any_more_is_waited_for_by_none(
    mortal_redis: RedisServer, limits: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    async with served(mortal_redis.url, echo, servicer) as world:
        await leave(limits, MIB)
        large = world.stub.Collect([echo.Text(data=secrets.token_bytes(3 * MIB))], wait_for_ready=True)
        await until(lambda: world.client._keeper.is_away, "there is no room for it")
        small = world.stub.Unary(echo.Text(text="x"), wait_for_ready=True)
        large.cancel()
        world.door.set_capacity(1)
        async with asyncio.timeout(LIMIT):
            assert (await small).text == "x"
        assert servicer.calls == 1


async def test_what_was_taken_leaves_its_door_though_further_calls_have_no_room(
    mortal_redis: RedisServer, limits: Any
) -> None:
    """As in a scheduler, which takes calls and makes others for them."""
    async with linked(mortal_redis.url, "server-1") as (link,):
        await link.join("calls:Echo")
        (number,) = await link.publish(Batch(1, opens=[("calls:Echo", b"x")]))
        await link.take("calls:Echo", 1)
        await leave(limits, -1)
        batch = Batch(2, opens=[("calls:Next", b"y")], settled=[("calls:Echo", number)])
        with pytest.raises(BusAway, match="OOM"):
            await link.publish(batch)
        assert await limits.xlen("quire:calls:Echo") == 0
        await leave(limits, 8 * MIB)
        assert len(await link.publish(batch, again=True)) == 1


async def test_a_full_redis_takes_an_accept_as_its_call_leaves_the_door(
    mortal_redis: RedisServer, limits: Any
) -> None:
    """Who does not find its call at the door any more must find its ACCEPT."""
    async with linked(mortal_redis.url, "server-1", "a-1") as (link, *_):
        await link.join("calls:Echo")
        (number,) = await link.publish(Batch(1, opens=[("calls:Echo", b"x")]))
        await link.take("calls:Echo", 1)
        await leave(limits, -1)
        accept, settled = [("a-1", b"1"), ("nobody-1", b"1"), ("a-1", b"2")], [("calls:Echo", number)]
        assert await link.publish(Batch(2, entries=accept, settled=settled)) == ()
        found = await limits.xrange("quire:inbox:a-1")
        assert [fields[b"e"] for _, fields in found] == [b"1", b"2"]
        assert await limits.xlen("quire:calls:Echo") == 0
        assert (await link.look("calls:Echo"))[:2] == (0, 0)


@pytest.mark.parametrize("opens", [[], [("calls:Next", b"y")]], ids=["answers", "answers and calls"])
async def test_a_call_stays_at_its_door_where_redis_takes_no_writes_at_all(
    mortal_redis: RedisServer, limits: Any, opens: list[tuple[str, bytes]]
) -> None:
    async with linked(mortal_redis.url, "server-1", "a-1") as (link, *_):
        await link.join("calls:Echo")
        (number,) = await link.publish(Batch(1, opens=[("calls:Echo", b"x")]))
        await link.take("calls:Echo", 1)
        await limits.config_set("min-replicas-to-write", 1)
        batch = Batch(2, opens=opens, entries=[("a-1", b"accepted")], settled=[("calls:Echo", number)])
        with pytest.raises(Refused, match="NOREPLICAS") as refused:
            await link.publish(batch)
        await limits.config_set("min-replicas-to-write", 0)
        assert len(await link.publish(refused.value.rest, again=True)) == len(opens)
        assert await limits.xlen("quire:calls:Echo") == 0
        assert await limits.xlen("quire:inbox:a-1") == 1


async def test_of_a_batch_that_was_refused_in_part_only_that_part_is_repeated(
    mortal_redis: RedisServer, limits: Any
) -> None:
    async with linked(mortal_redis.url, "server-1", "a-1", "b-1") as (link, *_):
        await leave(limits, MIB)
        batch = Batch(1, entries=[("a-1", bytes(2 * MIB)), ("b-1", b"y")])
        with pytest.raises(BusAway, match="OOM"):
            await link.publish(batch)
        await leave(limits, 8 * MIB)
        assert await link.publish(batch, again=True) == ()
        assert [await limits.xlen(f"quire:inbox:{name}") for name in ("a-1", "b-1")] == [1, 1]
        assert await link.publish(Batch(2, entries=[("a-1", b"z")])) == ()
        assert await limits.xlen("quire:inbox:a-1") == 2


# --- leases ---


async def test_a_full_redis_lets_leases_be_taken_and_written(mortal_redis: RedisServer, limits: Any) -> None:
    async with linked(mortal_redis.url, "server-1") as (link,):
        await leave(limits, -1)
        await limits.pexpire("quire:alive:server-1", 1000)
        assert await link.renew_lease(b'{"workers": 2}', LEASE)
        assert await limits.get("quire:alive:server-1") == b'{"workers": 2}'
        assert await limits.pttl("quire:alive:server-1") > 1000
        await limits.delete("quire:alive:server-1")
        assert not await link.renew_lease(b"{}", LEASE)
        await link.take_lease(b"{}", LEASE)
        assert await limits.get("quire:alive:server-1") == b"{}"


async def test_a_process_comes_up_at_a_full_redis(
    mortal_redis: RedisServer, limits: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """It may be the one that serves what fills it."""
    await leave(limits, -1)
    async with served(mortal_redis.url, echo, servicer) as world:
        listed = await limits.smembers("quire:processes")
        assert listed == {world.server.id.encode(), world.client.id.encode()}
        await until(lambda: world.server._keeper.is_away, "it knows that there is no room")
        await leave(limits, 8 * MIB)
        world.door.set_capacity(1)
        async with asyncio.timeout(LIMIT):
            assert (await world.stub.Unary(echo.Text(text="x"), wait_for_ready=True)).text == "x"
        assert (world.client.epoch, world.server.epoch) == (1, 1)


async def test_a_redis_that_was_full_when_it_died_empties_itself(
    mortal_redis: RedisServer, limits: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """In its new history nobody takes calls or trims inboxes without a new lease."""
    async with served(mortal_redis.url, echo, servicer) as world:
        await leave(limits, 12 * MIB)

        def ask() -> Any:
            data = [echo.Text(data=bytes(100_000))]
            return resumed(lambda: world.stub.Collect(data, wait_for_ready=True, timeout=LIMIT))

        calls = []
        while not world.client._keeper.is_away:
            calls.append(asyncio.ensure_future(ask()))
            await asyncio.sleep(0.01)
        await asyncio.to_thread(mortal_redis.kill)
        mortal_redis._options["maxmemory"] = "8mb"
        await asyncio.to_thread(mortal_redis.start)
        assert (await limits.info("memory"))["used_memory"] > 8 * MIB
        await asyncio.sleep(1.0)
        world.door.set_capacity(4)
        async with asyncio.timeout(LIMIT):
            assert [one.count for one in await asyncio.gather(*calls)] == [1] * len(calls)
        assert (world.client.epoch, world.server.epoch) == (2, 2), "each has dropped its calls once"


# --- an inbox that takes nothing more ---


async def test_others_do_not_wait_for_an_inbox_that_takes_nothing_more(
    mortal_redis: RedisServer, limits: Any
) -> None:
    async with linked(mortal_redis.url, "server-1", "a-1", "b-1") as (link, *_):
        await limits.xadd("quire:inbox:a-1", {b"e": b"x"}, LAST_ID)
        assert await link.publish(Batch(1, entries=[("a-1", b"y"), ("b-1", b"y")])) == ()
        batch = Batch(2, opens=[("calls:Echo", b"z")], entries=[("a-1", b"z"), ("b-1", b"z")])
        assert len(await link.publish(batch)) == 1
        assert [await limits.xlen(f"quire:inbox:{name}") for name in ("a-1", "b-1")] == [1, 2]


async def test_a_process_whose_inbox_takes_nothing_more_gets_a_new_one(
    mortal_redis: RedisServer, limits: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    async with served(mortal_redis.url, echo, servicer) as world:
        world.door.set_capacity(1)
        await limits.xadd(f"quire:inbox:{world.client.id}", {b"e": b"x"}, LAST_ID)
        await until(lambda: world.client.epoch == 2, "it has dropped its calls")
        async with asyncio.timeout(LIMIT):
            assert (await world.stub.Unary(echo.Text(text="x"), wait_for_ready=True)).text == "x"
