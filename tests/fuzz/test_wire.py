"""Readers of the transport: front doors, inboxes, leases."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from gateway.api.system.models import _object
from gateway.upstream.catalog import Catalog
from proto.rpc import Lease, MemoryBus, Node
from proto.rpc.bus import Received
from proto.rpc.lease import LeaseReader
from proto.wire_pb2 import ACCEPT, CANCEL, GONE, HALF_CLOSE, MESSAGE, OPEN, PROBE, STATUS, Entry
from tests.support.mutate import cases, spoiled, spoiled_json

METHOD = "/fuzz.Echo/Chat"


async def chat(requests: Any, context: Any) -> Any:
    async for request in requests:
        yield request


async def echo(node: Node) -> Any:
    """A server at the node that answers every message with the same message."""
    server = node.server(capacity=10**6)
    handlers = {"Chat": grpc.stream_stream_rpc_method_handler(chat)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("fuzz.Echo", handlers),))
    await server.start()
    return server


async def answered(node: Node, body: bytes) -> None:
    """Another caller's call is served as if nothing had been there."""
    async with asyncio.timeout(60):
        call = node.channel().stream_stream(METHOD)()
        await call.write(body)
        assert await call.read() == body
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


def opening(number: int) -> Entry:
    entry = Entry(sender="hostile-1", epoch=1)
    frame = entry.requests.add(call=number, seq=1, kind=OPEN)
    frame.open.method, frame.open.timeout = METHOD, 4e9
    frame.metadata.add(key="quire-attempt", value=b"1")
    frame.metadata.add(key="traceparent", value=b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    frame.metadata.add(key="x-bin", value=b"\xff")
    entry.requests.add(call=number, seq=2, kind=MESSAGE, body=b"x")
    entry.requests.add(call=number, seq=3, kind=HALF_CLOSE)
    return entry


def talk(number: int, server: str) -> Entry:
    """Every kind of frame, of calls that there are and of others."""
    entry = Entry(sender=server, epoch=1)
    for call in (number, 2**40):
        for seq, kind in enumerate((ACCEPT, MESSAGE, PROBE, GONE, STATUS)):
            frame = entry.responses.add(call=call, seq=seq, kind=kind, body=b"x")
            frame.status.code, frame.status.details = 13, "no"
            frame.metadata.add(key="quire-lost", value=b"worker-1")
        for seq, kind in enumerate((MESSAGE, PROBE, HALF_CLOSE, CANCEL)):
            entry.requests.add(call=call, seq=seq + 1, kind=kind, body=b"x")
    return entry


@pytest.fixture
async def nodes() -> Any:
    bus = MemoryBus()
    async with (
        Node(bus, "server", lease_seconds=30) as server,
        Node(bus, "client", lease_seconds=30) as client,
    ):
        yield server, client


async def test_front_doors(nodes: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    node, client = nodes
    server = await echo(node)
    for of in cases("front door"):
        number = of.number
        good = opening(number)
        payload = spoiled(of, good, [talk(number, "x").SerializeToString()])
        server._receive(Received(f"9-{number}", payload, of.choice((1, 1, 1, 2, 4))))
        await asyncio.sleep(0)
        if number % 50 == 0:
            await answered(client, str(number).encode())
    node.peer_is("hostile-1", None)
    await answered(client, b"last")


async def test_inboxes(nodes: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    node, client = nodes
    await echo(node)
    live = client.channel().stream_stream(METHOD)()
    await live.write(b"a")
    assert await live.read() == b"a"
    for of in cases("inbox"):
        number = of.number
        victim = of.choice((node, client))
        for payload in (spoiled(of, talk(number % 40, "hostile-1")), spoiled(of, opening(number))):
            victim._receive(Received(f"9-{number}", payload))
        await asyncio.sleep(0)
        if number % 50 == 0:
            await answered(client, str(number).encode())
    await live.write(b"b")
    async with asyncio.timeout(60):
        assert await live.read() == b"b", "a call that was there before goes on"
    live.cancel()


class Leases:
    """A backend of the gateway whose processes say what the fuzzer says."""

    def __init__(self) -> None:
        self.found: list[Lease] = []

    async def leases(self) -> list[Lease]:
        return self.found

    def tokenizer(self, model: str) -> Any:
        raise NotImplementedError


async def test_leases(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    good = Lease(
        "tokenizer-1", "tokenizer", 1, {"model": "m", "defaults": {"temperature": 0.6}}, "host", 7, ("a",)
    )
    scheduler = Lease("scheduler-1", "scheduler", 1, {"model": "m", "workers": 1, "max_model_len": 64})
    backend, clock = Leases(), 0.0
    reader = LeaseReader()
    for of in cases("lease"):
        raw = spoiled_json(of, json.loads(of.choice((good, scheduler)).encode()), text=False)
        values = {"hostile-1": raw, "good-1": good.encode(), "good-2": scheduler.encode()}
        leases = reader.read(values)
        assert leases["good-1"].info == good.info
        assert {door for lease in leases.values() for door in lease.doors} >= {"a"}
        assert all(lease.epoch == lease.epoch for lease in leases.values())
        backend.found = [lease for _, lease in sorted(leases.items())]
        clock += 10
        catalog = Catalog(backend, lambda clock=clock: clock)
        models = await catalog.models()
        json.dumps(
            [_object(model, model.name) for model in models], allow_nan=False, ensure_ascii=False
        ).encode()
        assert "m" in {model.name for model in models if not model.missing}
