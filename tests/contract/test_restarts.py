"""A Redis that restarts, or whose replica takes its place: it may lack what it has acknowledged."""

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import hiredis
import pytest
import redis.asyncio
from grpc.aio import AioRpcError

from ops.launcher.redis_server import RedisServer, free_port
from proto.rpc import Node, RedisBus, Resumption
from proto.rpc.bus import door_of
from tests.contract.conftest import LEASE, LIMIT

QUICK = {"repl-diskless-sync-delay": "0"}
"""Options of servers whose replicas are soon there."""


@pytest.fixture
def mortal_redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(directory=tmp_path) as server:
        yield server


@contextlib.asynccontextmanager
async def served(url: str, echo: SimpleNamespace, servicer: Any, capacity: int = 100) -> AsyncIterator[Any]:
    """A server and a client at one Redis."""
    bus = RedisBus(url, f"test-{secrets.token_hex(4)}:")
    async with (
        Node(bus, "server", lease_seconds=LEASE) as server,
        Node(bus, "client", lease_seconds=LEASE) as client,
    ):
        door = server.server(capacity=capacity)
        echo.add_EchoServicer_to_server(servicer, door)
        await door.start()
        stub = echo.EchoStub(client.channel())
        yield SimpleNamespace(server=server, client=client, door=door, stub=stub, bus=bus)


async def resumed(ask: Callable[[], Awaitable[Any]], resumption: Resumption | None = None) -> Any:
    """Ask until there is an answer, as services do."""
    resumption = resumption or Resumption()
    while True:
        try:
            return await ask()
        except AioRpcError as error:
            resumption.retry_or_raise(error)


class Conversation:
    """Counts on, one question and answer after the other; goes on in another call when one ends."""

    def __init__(self, echo: SimpleNamespace, stub: Any) -> None:
        self.seen: list[int] = []
        self.calls = 0
        self.enough = False
        self._echo, self._stub = echo, stub
        self._resumption = Resumption()

    async def run(self) -> None:
        """Count until it is `enough`."""
        await resumed(self._go_on, self._resumption)

    async def _go_on(self) -> None:
        self.calls += 1
        call = self._stub.Chat(wait_for_ready=True, metadata=self._resumption.metadata())
        while not self.enough:
            with contextlib.suppress(asyncio.InvalidStateError):  # it has ended: reading raises the reason
                await call.write(self._echo.Text(count=len(self.seen)))
            answer = await call.read()
            if answer is grpc.aio.EOF:
                await call  # raises
            self.seen.append(answer.count)
            self._resumption.progressed()
            await asyncio.sleep(0.005)
        await call.done_writing()


class Conversations:
    """Several at a time."""

    def __init__(self, number: int, echo: SimpleNamespace, stub: Any, until: Callable[..., Any]) -> None:
        self.each = [Conversation(echo, stub) for _ in range(number)]
        self._talks = asyncio.gather(*(one.run() for one in self.each))
        self._until = until

    async def go_on(self) -> None:
        """Return when each has counted on by ten."""
        upto = [len(one.seen) + 10 for one in self.each]
        pairs = list(zip(self.each, upto, strict=True))
        await self._until(
            lambda: self._talks.done() or all(len(one.seen) >= most for one, most in pairs), "they go on"
        )

    async def end(self) -> None:
        """End them all; none has lost or repeated a number."""
        for one in self.each:
            one.enough = True
        await self._talks
        for one in self.each:
            assert one.seen == list(range(len(one.seen)))


async def at_its_door(world: Any, echo: SimpleNamespace, looking: Any, until: Any) -> tuple[Any, str]:
    """A call that nobody takes, in the Redis at which `looking` looks; and the door."""
    call = world.stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    door = world.bus.prefix + door_of("contract.Echo")

    async def waits() -> bool:
        return bool(await looking.xlen(door))

    await until(waits, "the call is at its door")
    return call, door


async def is_asked_again(call: Any, world: Any, echo: SimpleNamespace) -> None:
    """A call that Redis has forgotten ends so that its caller asks again, and is answered."""
    async with asyncio.timeout(LIMIT):
        with pytest.raises(AioRpcError) as caught:
            await call
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    world.door.set_capacity(1)
    async with asyncio.timeout(LIMIT):
        assert (await world.stub.Unary(echo.Text(text="x"), wait_for_ready=True)).text == "x"


def run_out(mortal_redis: RedisServer, world: Any) -> None:
    """Leases that end while Redis is away: it drops them when it starts, and their processes know by their
    own clocks."""
    (written,) = mortal_redis.directory.glob("appendonlydir/*.incr.aof")
    with written.open("ab") as file:
        for node in (world.server, world.client):
            file.write(hiredis.pack_command(("DEL", f"{world.bus.prefix}alive:{node.id}")))
            node._keeper._held_until = 0.0


@pytest.mark.parametrize("longer", [False, True], ids=["shorter than a lease", "longer than a lease"])
async def test_everything_goes_on_after_a_redis_was_killed_under_load(
    mortal_redis: RedisServer, echo: SimpleNamespace, servicer: Any, until: Any, longer: bool
) -> None:
    async with served(mortal_redis.url, echo, servicer) as world:
        conversations = Conversations(20, echo, world.stub, until)
        await conversations.go_on()

        def ask(text: str) -> "asyncio.Task[Any]":
            unary = world.stub.Unary
            return asyncio.create_task(resumed(lambda: unary(echo.Text(text=text), wait_for_ready=True)))

        before = ask("x")
        await asyncio.to_thread(mortal_redis.kill)
        if longer:
            run_out(mortal_redis, world)
        meanwhile = ask("y")
        await asyncio.to_thread(mortal_redis.start)
        async with asyncio.timeout(LIMIT):
            assert ((await before).text, (await meanwhile).text) == ("x", "y")
            await conversations.go_on()
            await conversations.end()
        assert [one.calls for one in conversations.each] == [2] * 20, "each is resumed once"
        assert (world.server.epoch, world.client.epoch) == (2, 2)


async def test_everything_goes_on_at_a_redis_that_comes_back_empty_after_more_than_a_lease(
    mortal_redis: RedisServer, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    async with served(mortal_redis.url, echo, servicer) as world:
        conversations = Conversations(5, echo, world.stub, until)
        await conversations.go_on()
        await asyncio.to_thread(mortal_redis.kill)
        for node in (world.server, world.client):
            node._keeper._held_until = 0.0
        await until(lambda: not world.door._room.is_set(), "it takes no calls without a lease")
        shutil.rmtree(mortal_redis.directory / "appendonlydir")
        await asyncio.to_thread(mortal_redis.start)
        async with asyncio.timeout(LIMIT):
            await conversations.go_on()
            await conversations.end()
        assert [one.calls for one in conversations.each] == [2] * 5, "each is resumed once"


async def test_acknowledged_entries_that_are_lost_while_keys_survive(
    mortal_redis: RedisServer, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """What a loss of power leaves of a file that is synced every second: its beginning."""
    async with (
        served(mortal_redis.url, echo, servicer, capacity=0) as world,
        redis.asyncio.Redis.from_url(mortal_redis.url, socket_timeout=60) as looking,
    ):
        (written,) = mortal_redis.directory.glob("appendonlydir/*.incr.aof")
        lease = f"{world.bus.prefix}alive:{world.client.id}"
        # Redis writes to the file later than it answers while the disk is busy.
        await until(lambda: lease.encode() in written.read_bytes(), "the lease is in the file")
        size = written.stat().st_size
        call, door = await at_its_door(world, echo, looking, until)
        await asyncio.to_thread(mortal_redis.kill)
        with written.open("r+b") as file:
            file.truncate(size)
        await asyncio.to_thread(mortal_redis.start)
        assert await looking.xlen(door) == 0, "Redis has forgotten it"
        assert await looking.exists(lease), "and not the leases"
        await is_asked_again(call, world, echo)


# --- a replica that takes its place ---


class Address:
    """Leads to one server and later to another, as a name or an address that fails over does."""

    def __init__(self, target: RedisServer) -> None:
        self._target = target
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> int:
        """The port of loopback where it listens."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def lead(self, target: RedisServer, cut: bool) -> None:
        """New connections lead to `target`; existing ones are cut, or stay where they are."""
        self._target = target
        for task in self._tasks if cut else ():
            task.cancel()

    def close(self) -> None:
        self._server.close()
        self.lead(self._target, cut=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target.port)
        task = asyncio.ensure_future(self._carry(reader, back, there, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)

        try:
            pumps = [asyncio.ensure_future(pump(reader, back)), asyncio.ensure_future(pump(there, writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in pumps:
                one.cancel()
            writer.transport.abort()
            back.transport.abort()


@contextlib.asynccontextmanager
async def replica_of(primary: RedisServer, until: Any) -> AsyncIterator[RedisServer]:
    """A replica that has all of the primary's data. The first one changes the primary's history."""
    replica = RedisServer(port=free_port(), options=QUICK)
    replica.password = primary.password
    with replica:
        async with redis.asyncio.Redis.from_url(replica.url, socket_timeout=60) as new:
            await new.config_set("masterauth", primary.password)
            await new.replicaof("127.0.0.1", str(primary.port))

            async def synced() -> bool:
                return bool((await new.info("replication"))["master_link_status"] == "up")

            await until(synced, "the replica follows")
        yield replica


@pytest.fixture
async def failover(until: Any) -> AsyncIterator[SimpleNamespace]:
    """A primary, its replica, and the address at which processes find the one that is to be used."""
    with RedisServer(port=free_port(), options=QUICK) as primary:
        async with (
            replica_of(primary, until) as replica,
            redis.asyncio.Redis.from_url(primary.url, socket_timeout=60) as old,
            redis.asyncio.Redis.from_url(replica.url, socket_timeout=60) as new,
        ):
            await old.config_set("masterauth", primary.password)
            address = Address(primary)
            url = f"redis://:{primary.password}@127.0.0.1:{await address.open()}/0"
            yield SimpleNamespace(
                primary=primary, replica=replica, old=old, new=new, address=address, url=url
            )
            address.close()


async def test_a_promoted_replica_that_lacks_the_last_entries(
    failover: SimpleNamespace, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    async with served(failover.url, echo, servicer, capacity=0) as world:
        lease = f"{world.bus.prefix}alive:{world.client.id}"

        async def followed() -> bool:
            return bool(await failover.new.exists(lease))

        await until(followed, "the replica has the leases")
        await failover.new.replicaof("NO", "ONE")
        call, door = await at_its_door(world, echo, failover.old, until)
        assert await failover.new.xlen(door) == 0, "the replica has never heard of it"
        failover.address.lead(failover.replica, cut=True)
        await is_asked_again(call, world, echo)
        await until(
            lambda: (world.server.epoch, world.client.epoch) == (2, 2), "both have dropped their calls"
        )


async def test_a_primary_that_becomes_a_replica_keeps_nobody(
    failover: SimpleNamespace, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """Connections to it stay open, and one that is read from would wait for ever."""
    async with served(failover.url, echo, servicer) as world:
        conversations = Conversations(5, echo, world.stub, until)
        await conversations.go_on()
        await failover.new.replicaof("NO", "ONE")
        failover.address.lead(failover.replica, cut=False)
        await failover.old.replicaof("127.0.0.1", str(failover.replica.port))
        await until(lambda: min(world.server.epoch, world.client.epoch) > 1, "both have dropped their calls")
        async with asyncio.timeout(LIMIT):
            await conversations.go_on()
            await conversations.end()
        assert (world.server.epoch, world.client.epoch) == (2, 2)

        async def gone() -> bool:
            clients = await failover.old.client_list()
            return not [one for one in clients if one["cmd"] in ("xread", "xreadgroup", "xadd")]

        await until(gone, "no connection is left at the old primary")


async def test_a_connection_that_is_opened_after_a_first_replica_has_attached(
    echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """The primary has another history from then on, of which the connections from before do not know."""
    with RedisServer(port=free_port(), options=QUICK) as primary:
        async with served(primary.url, echo, servicer) as world:
            conversations = Conversations(5, echo, world.stub, until)
            await conversations.go_on()
            async with (
                replica_of(primary, until),
                redis.asyncio.Redis.from_url(primary.url, socket_timeout=60) as looking,
            ):
                await conversations.go_on()
                assert (world.server.epoch, world.client.epoch) == (1, 1)
                for one in await looking.client_list():
                    if one["cmd"] in ("xread", "xreadgroup"):
                        await looking.client_kill_filter(_id=one["id"])
                await until(lambda: min(world.server.epoch, world.client.epoch) > 1, "both drop them")
                async with asyncio.timeout(LIMIT):
                    await conversations.go_on()
                    await conversations.end()
        assert (world.server.epoch, world.client.epoch) == (2, 2)


async def test_a_door_that_is_opened_after_a_first_replica_has_attached(
    echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """As that of a worker which has its lease before it has loaded its model."""
    with RedisServer(port=free_port(), options=QUICK) as primary:
        bus = RedisBus(primary.url)
        async with Node(bus, "server", lease_seconds=LEASE) as node, replica_of(primary, until):
            server = node.server()
            echo.add_EchoServicer_to_server(servicer, server)
            await server.start()
            async with Node(bus, "client", lease_seconds=LEASE) as client, asyncio.timeout(LIMIT):
                stub = echo.EchoStub(client.channel())
                assert (await stub.Unary(echo.Text(text="x"), wait_for_ready=True)).text == "x"
