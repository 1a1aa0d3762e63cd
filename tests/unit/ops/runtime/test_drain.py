"""Stopping over the in-memory bus: calls go on, are handed over, or end with the time they get."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest

from ops.runtime.drain import drain
from proto.rpc import Lease, MemoryBus, Node, Server
from proto.tokenizer_pb2 import EmbedRequest, EmbedResponse
from proto.tokenizer_pb2_grpc import TokenizerServicer, TokenizerStub, add_TokenizerServicer_to_server


class Slow(TokenizerServicer):
    """Answers with its name once it may."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def Embed(self, request: EmbedRequest, context: Any) -> EmbedResponse:
        self.asked.set()
        await self.may.wait()
        return EmbedResponse(embedding=self.name)


async def serving(node: Node, servicer: Slow) -> Server:
    server = node.server(pool="m", capacity=4)
    add_TokenizerServicer_to_server(servicer, server)
    await server.start()
    return server


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[Node, Node, Node]]:
    """A client, a replica that is asked to stop, and another one."""
    bus = MemoryBus()
    async with (
        asyncio.timeout(60),
        Node(bus, service="gateway", lease_seconds=60) as client,
        Node(bus, service="tokenizer", lease_seconds=60) as first,
        Node(bus, service="tokenizer", lease_seconds=60) as second,
    ):
        yield client, first, second


def ask(client: Node) -> Any:
    return TokenizerStub(client.channel(pool="m")).Embed(EmbedRequest(), wait_for_ready=True)


async def test_a_call_may_end_and_new_ones_go_elsewhere(nodes: tuple[Node, Node, Node]) -> None:
    client, first, second = nodes
    old, new = Slow(b"old"), Slow(b"new")
    server = await serving(first, old)
    call = ask(client)
    await old.asked.wait()

    async def asked() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await drain(first, server, 3600)

    draining = asyncio.ensure_future(asked())
    await asyncio.sleep(0)
    draining.cancel()
    while not (lease := next(one for one in await client.leases() if one.process_id == first.id)).info:
        await asyncio.sleep(0)
    assert lease.info == {"stopping": True}
    assert not draining.cancelling(), "or a timeout would end it: see `asked_to_stop`"
    later = ask(client)
    new.may.set()
    await serving(second, new)
    assert (await later).embedding == b"new"
    assert not draining.done()
    old.may.set()
    assert (await call).embedding == b"old"
    await draining


async def test_what_has_not_ended_in_time_is_handed_over(nodes: tuple[Node, Node, Node]) -> None:
    client, first, _ = nodes
    old = Slow(b"old")
    server = await serving(first, old)
    call = ask(client)
    await old.asked.wait()
    await drain(first, server, 0.05)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not any(key == "quire-lost" for key, _ in error.value.trailing_metadata()), "no attempt is counted"


async def test_calls_are_handed_over_as_soon_as_somebody_takes_them(nodes: tuple[Node, Node, Node]) -> None:
    client, first, second = nodes
    old = Slow(b"old")
    server = await serving(first, old)
    call = ask(client)
    await old.asked.wait()
    seen: list[Sequence[Lease]] = []

    def enough(peers: Sequence[Lease]) -> bool:
        seen.append(peers)
        return bool(peers)

    draining = asyncio.ensure_future(drain(first, server, 3600, enough))
    while not seen:
        await asyncio.sleep(0)
    assert seen == [[]], "it is no peer of its own, and the client is none"
    await serving(second, Slow(b"new"))
    await draining
    assert [lease.process_id for lease in seen[-1]] == [second.id]
    assert await call.code() is grpc.StatusCode.UNAVAILABLE


async def test_once_more_ends_the_calls_at_once(nodes: tuple[Node, Node, Node]) -> None:
    client, first, _ = nodes
    old = Slow(b"old")
    server = await serving(first, old)
    call = ask(client)
    await old.asked.wait()
    draining = asyncio.ensure_future(drain(first, server, 3600))
    await asyncio.sleep(0.05)
    assert not call.done()
    draining.cancel()
    await asyncio.wait([draining])
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
