"""What a server takes from its door, and when."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc

from proto.rpc.memory_bus import MemoryBus
from proto.rpc.node import Node
from proto.rpc.server import Server


async def test_a_place_that_becomes_free_is_given_at_once() -> None:
    """And not when the lease is renewed, which takes longer than the test may."""
    begun, go_on = asyncio.Queue[bytes](), asyncio.Event()

    async def say(request: bytes, context: Any) -> bytes:
        begun.put_nowait(request)
        await go_on.wait()
        return request

    async with asyncio.timeout(60), Node(MemoryBus(), "a", lease_seconds=600) as node:
        server = node.server(capacity=1)
        handlers = {"Say": grpc.unary_unary_rpc_method_handler(say)}
        server.add_registered_method_handlers("x.Echo", handlers)
        await server.start()
        ask = node.channel().unary_unary("/x.Echo/Say")
        calls = [ask(name, wait_for_ready=True) for name in (b"first", b"second")]
        assert await begun.get() == b"first"
        assert server._free == 0
        go_on.set()
        assert [await call for call in calls] == [b"first", b"second"]


async def test_calls_for_which_there_is_no_room_are_given_back() -> None:
    node = Mock(link=AsyncMock())
    server = Server(node, "", capacity=1)
    server.door, received = "calls:Echo", list[Any]()
    server._receive = lambda entry: (received.append(entry.id), server._calls.add(entry))  # type: ignore[assignment]
    await server._arrived([Mock(id=f"{number}-1") for number in range(3)])
    assert received == ["0-1"]
    node.link.give_back.assert_awaited_once_with("calls:Echo", ["1-1", "2-1"])
