"""One suite, several transports: the bus in memory, over Redis (bundled, and Debian's), and plain gRPC."""

import asyncio
import contextlib
import importlib
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import redis.asyncio
from grpc_tools import protoc

from ops.launcher.redis_server import RedisServer
from proto.rpc import Bus, MemoryBus, Node, RedisBus, Server
from proto.rpc import lease as lease_module
from proto.rpc import watch as watch_module
from proto.rpc.bus import Link
from proto.rpc.memory_bus import Stream
from tests.support.faulty_bus import FaultyBus

DEBIAN = shutil.which("redis-server", path="/usr/bin:/usr/local/bin")
BUSES = ["memory", "redis", *(["debian-redis"] if DEBIAN else [])]
LIMIT = 60.0
"""Seconds after which a test that waits fails: only against hanging, however slow the machine is."""
LEASE = 60.0
"""Seconds of a lease: none runs out by itself. One that is to run out does so by `World.expire`."""
PACE = 0.1
"""Seconds between two renewals, and between two looks at the leases of peers."""
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are long, and renewed and looked at as often as short ones."""
    monkeypatch.setattr(lease_module, "RENEWALS", LEASE / PACE)
    monkeypatch.setattr(watch_module, "WATCH_SECONDS", PACE)


@pytest.fixture(scope="session")
def echo(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The compiled contract: Text, EchoStub, add_EchoServicer_to_server, ..."""
    out = tmp_path_factory.mktemp("echo")
    assert (
        protoc.main(["", f"-I{HERE}", f"--python_out={out}", f"--grpc_python_out={out}", "echo.proto"]) == 0
    )
    sys.path.insert(0, str(out))
    messages, services = importlib.import_module("echo_pb2"), importlib.import_module("echo_pb2_grpc")
    return SimpleNamespace(**vars(messages), **{k: v for k, v in vars(services).items() if "Echo" in k})


@pytest.fixture
def servicer(echo: SimpleNamespace) -> Any:
    return make_servicer(echo)


def make_servicer(echo: SimpleNamespace) -> Any:
    """Does what requests say, and notes what happens to it."""

    class Servicer(echo.EchoServicer):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.calls = 0
            self.started = asyncio.Event()
            self.cancelled = asyncio.Event()
            self.go = asyncio.Event()
            self.seen: list[Any] = []

        async def Unary(self, request: Any, context: Any) -> Any:
            self.begin()
            if request.text == "metadata":
                self.seen = list(context.invocation_metadata())
                await context.send_initial_metadata((("first", "one"),))
                context.set_trailing_metadata((("last", "two"), ("last-bin", b"\x00\xff")))
            elif request.text == "context":
                self.seen = [context.time_remaining(), context.cancelled(), context.done(), context.peer()]
            await self.act(request, context)
            return echo.Text(text=request.text, count=request.count + 1, data=request.data)

        async def Stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
            self.begin()
            for index in range(request.count):
                yield echo.Text(text=request.text, count=index, data=request.data)
            await self.act(request, context)

        async def Collect(self, requests: Any, context: Any) -> Any:
            self.begin()
            texts = []
            async for request in requests:
                self.seen.append(request.text)
                await self.act(request, context)
                if request.text == "early":
                    break
                texts.append(request.text)
            return echo.Text(text=" ".join(texts), count=len(texts))

        async def Chat(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            self.begin()
            async for request in requests:
                self.seen.append(request.text)
                await self.act(request, context)
                yield request
            yield echo.Text(text="bye")

        def begin(self) -> None:
            self.calls += 1
            self.started.set()

        async def act(self, request: Any, context: Any) -> None:
            if request.text == "abort":
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no good", (("quire-param", "n"),))
            elif request.text == "raise":
                raise ValueError("boom")
            elif request.text == "code":
                context.set_code(grpc.StatusCode.NOT_FOUND)
                context.set_details("nowhere")
            elif request.text == "wait":
                try:
                    await self.go.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise

    return Servicer()


# --- servers of Redis ---


@pytest.fixture(scope="session")
def debian_redis() -> Iterator[RedisServer]:
    with RedisServer(Path(DEBIAN or "")) as server:
        yield server


class World:
    """Processes that meet at one bus, and what a test may look at or break there."""

    def __init__(self, kind: str, server: RedisServer | None) -> None:
        self.kind, self.server = kind, server
        self.prefix = f"test-{secrets.token_hex(4)}:"
        self.stack = contextlib.AsyncExitStack()
        self.memory = MemoryBus()
        self.redis = redis.asyncio.Redis.from_url(server.url, socket_timeout=60) if server else None

    def bus(self) -> Bus:
        """The bus, as one process sees it."""
        return RedisBus(self.server.url, self.prefix) if self.server else self.memory

    async def node(self, service: str = "test", bus: Bus | None = None, **options: Any) -> Node:
        """A process. It asks about quiet calls only if it is given `quiet_seconds`."""
        options = {"lease_seconds": LEASE, "quiet_seconds": LEASE, **options}
        return await self.stack.enter_async_context(Node(bus or self.bus(), service, **options))

    async def faulty_node(self, service: str = "test", **options: Any) -> tuple[Node, FaultyBus]:
        faults = FaultyBus(self.bus())
        return await self.node(service, faults, **options), faults

    async def serve(self, node: Node, servicer: Any, add: Callable[..., None], **options: Any) -> Server:
        server = node.server(**options)
        add(servicer, server)
        await server.start()
        return server

    async def replica(self, name: str, door: str) -> Link:
        """A process that lives and may take calls from a door, and does nothing by itself."""
        link = await self.bus().connect(name)
        await link.take_lease(b"{}", LEASE)
        await link.join(door)
        return link

    async def add(self, stream: str, fields: dict[bytes, bytes]) -> None:
        """Append a raw entry."""
        if self.redis is not None:
            await self.redis.xadd(self.prefix + stream, fields)  # type: ignore[arg-type]
        else:
            self.memory.add(stream, fields.get(b"e"))

    async def dead_letters(self) -> list[str]:
        """Stream and reason of each."""
        if self.redis is None:
            return [
                (payload or b"").decode() for payload in self.memory.streams["dead-letters"].entries.values()
            ]
        letters = await self.redis.xrange(f"{self.prefix}dead-letters")
        return [f"{letter[b'stream'].decode()} {letter[b'reason'].decode()}" for _, letter in letters]

    async def length(self, stream: str) -> int:
        if self.redis is not None:
            return int(await self.redis.xlen(self.prefix + stream))
        return len(self.memory.streams[stream].entries)

    async def exists(self, stream: str) -> bool:
        if self.redis is not None:
            return bool(await self.redis.exists(self.prefix + stream))
        return stream in self.memory.streams

    async def drop_group(self, door: str) -> None:
        """Forget who serves a door, and which of its calls they have taken."""
        if self.redis is not None:
            await self.redis.xgroup_destroy(self.prefix + door, "replicas")
        else:
            self.memory.streams[door] = Stream(self.memory.streams[door].entries)

    async def drop_lease(self, process_id: str) -> None:
        if self.redis is not None:
            await self.redis.delete(f"{self.prefix}alive:{process_id}")
        else:
            self.memory.drop_lease(process_id)

    async def end_of_lease(self, process_id: str) -> float:
        """When a lease runs out, in seconds since a moment that stays the same."""
        if self.redis is not None:
            return await self.redis.pexpiretime(f"{self.prefix}alive:{process_id}") / 1000
        return self.memory._leases[process_id][1]

    async def expire(self, node: Node) -> None:
        """A lease runs out, by the clock of its own process as well. It must not be renewed meanwhile."""
        node._keeper._held_until = 0.0
        await self.drop_lease(node.id)

    async def die(self, node: Node, faults: FaultyBus) -> None:
        """A process is cut off until its lease has run out."""
        faults.disconnect()
        async with node._keeper._writing:  # a renewal that is under way
            await self.expire(node)

    async def set_lease(self, process_id: str, value: bytes) -> None:
        """Write a lease, whatever it says."""
        if self.redis is not None:
            await self.redis.set(f"{self.prefix}alive:{process_id}", value, ex=600)
            await self.redis.sadd(f"{self.prefix}processes", process_id)
        else:
            self.memory.set_lease(process_id, value, 600.0)

    async def pending(self) -> dict[str, int]:
        """Calls that were taken from a door and not settled."""
        if self.redis is None:
            return {name: len(one.pending) for name, one in self.memory.streams.items() if one.pending}
        found = {}
        async for key in self.redis.scan_iter(f"{self.prefix}calls:*"):
            for group in await self.redis.xinfo_groups(key):
                if group["pending"]:
                    found[key.decode()] = group["pending"]
        return found

    async def none_pending(self) -> None:
        """Fails if calls stay pending."""
        await until(self._none_pending, "calls are pending for ever")

    async def _none_pending(self) -> bool:
        return not await self.pending()

    async def close(self) -> None:
        await self.stack.aclose()
        if self.redis is not None:
            await self.redis.aclose()


async def until(true: Callable[[], Any], what: str) -> None:
    """Wait for something that no event tells of."""
    async with asyncio.timeout(LIMIT):
        while True:
            value = true()
            if await value if asyncio.iscoroutine(value) else value:
                return
            await asyncio.sleep(0.01)
    raise AssertionError(what)


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    return until


@pytest.fixture(params=BUSES)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A bus of its own for the test; in the end nothing may be pending on it."""
    names = {"redis": "redis_server", "debian-redis": "debian_redis"}
    server = request.getfixturevalue(names[request.param]) if request.param in names else None
    world = World(request.param, server)
    try:
        yield world
        await world.none_pending()
    finally:
        await world.close()


@pytest.fixture(params=[*BUSES, "grpc"])
async def stub(request: pytest.FixtureRequest, echo: SimpleNamespace, servicer: Any) -> AsyncIterator[Any]:
    """A stub whose calls `servicer` serves, over each of the transports."""
    if request.param == "grpc":
        plain = grpc.aio.server()
        echo.add_EchoServicer_to_server(servicer, plain)
        port = plain.add_insecure_port("127.0.0.1:0")
        await plain.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield echo.EchoStub(channel)
        await plain.stop(None)
        return
    names = {"redis": "redis_server", "debian-redis": "debian_redis"}
    server = request.getfixturevalue(names[request.param]) if request.param in names else None
    world = World(request.param, server)
    try:
        await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
        yield echo.EchoStub((await world.node("client")).channel())
        await world.none_pending()
    finally:
        await world.close()


@pytest.fixture
async def pair(world: Any, echo: SimpleNamespace, servicer: Any) -> SimpleNamespace:
    """A client and a server, each with a link that can be broken."""
    server, server_faults = await world.faulty_node("server")
    client, client_faults = await world.faulty_node("client")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    stub = echo.EchoStub(client.channel())
    return SimpleNamespace(
        server=server, client=client, server_faults=server_faults, client_faults=client_faults, stub=stub
    )
