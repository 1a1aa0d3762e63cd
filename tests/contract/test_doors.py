"""What only the bus has: front doors, and who takes what from them."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError

from proto.rpc import Node, Resumption
from proto.wire_pb2 import Entry, Kind

DOOR = "calls:Echo"


async def error_of(call: Any) -> AioRpcError:
    with pytest.raises(AioRpcError) as caught:
        async with asyncio.timeout(10):
            await call
    return caught.value


@pytest.fixture
async def client(world: Any) -> Node:
    return await world.node("client")


@pytest.fixture
def stub(client: Node, echo: SimpleNamespace) -> Any:
    return echo.EchoStub(client.channel())


# --- who serves ---


async def test_nobody_serves_the_door(stub: Any, world: Any, echo: SimpleNamespace, until: Any) -> None:
    error = await error_of(stub.Unary(echo.Text()))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    await until(lambda: empty(world), "the call is withdrawn")


async def empty(world: Any) -> bool:
    return await world.length(DOOR) == 0


async def test_waiting_at_the_door(
    stub: Any, world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    call = stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    await until(lambda: queued(world, 1), "the call is at the door")
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    assert (await call).text == "x"
    assert await world.length(DOOR) == 0


async def queued(world: Any, calls: int) -> bool:
    return await world.length(DOOR) == calls


async def test_a_call_that_would_not_wait_ends_when_the_last_server_leaves(
    stub: Any, world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    node = await world.node("server")
    server = await world.serve(node, servicer, echo.add_EchoServicer_to_server, capacity=0)
    call = stub.Unary(echo.Text())
    await asyncio.sleep(0.3)
    assert not call.done(), "somebody serves the door, if not at this moment"
    await server.stop(None)
    assert (await error_of(call)).code() is grpc.StatusCode.UNAVAILABLE


async def test_pools_have_doors_of_their_own(
    world: Any, client: Node, echo: SimpleNamespace, servicer: Any
) -> None:
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server, pool="a")
    assert (await echo.EchoStub(client.channel(pool="a")).Unary(echo.Text(text="x"))).text == "x"
    error = await error_of(echo.EchoStub(client.channel(pool="b")).Unary(echo.Text()))
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_serves_one_service(client: Node) -> None:
    server = client.server()
    server.add_registered_method_handlers("a.One", {})
    with pytest.raises(ValueError, match="make another one"):
        server.add_registered_method_handlers("a.Two", {})
    with pytest.raises(ValueError, match="no service"):
        await client.server().start()


# --- capacity ---


async def test_a_full_server_takes_no_more(
    stub: Any, world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    server = await world.serve(
        await world.node("server"), servicer, echo.add_EchoServicer_to_server, capacity=2
    )
    calls = [stub.Unary(echo.Text(text="wait")) for _ in range(5)]
    await until(lambda: servicer.calls == 2, "two calls run")
    await until(lambda: queued(world, 3), "the length of the door is the queue")
    assert servicer.calls == 2
    server.set_capacity(4)
    await until(lambda: servicer.calls == 4, "four calls run")
    assert await world.length(DOOR) == 1
    servicer.go.set()
    await asyncio.gather(*calls)
    assert servicer.calls == 5


async def test_capacity_0_takes_none(
    stub: Any, world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    server = await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    await stub.Unary(echo.Text())
    server.set_capacity(0)
    await asyncio.sleep(0.1)  # the read that waited for more calls is broken off meanwhile
    call = stub.Unary(echo.Text())
    await asyncio.sleep(0.3)
    assert servicer.calls == 1
    assert await world.length(DOOR) == 1
    assert await world.pending() == {}
    server.set_capacity(1)
    await call


async def test_a_slot_is_free_once_its_handler_has_returned(
    stub: Any, world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    leaving, left = asyncio.Event(), asyncio.Event()

    async def slow_end(request: Any, context: Any) -> Any:
        servicer.begin()
        try:
            await asyncio.Event().wait()
        finally:
            if servicer.calls == 1:
                leaving.set()
                await left.wait()

    servicer.Unary = slow_end
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server, capacity=1)
    first = stub.Unary(echo.Text())
    await servicer.started.wait()
    second = stub.Unary(echo.Text())
    first.cancel()
    await leaving.wait()
    await asyncio.sleep(0.2)
    assert servicer.calls == 1, "its cleaning up is not done"
    left.set()
    await second.wait_for_connection()
    second.cancel()


async def test_replicas_compete(
    world: Any, echo: SimpleNamespace, stub: Any, servicer: Any, until: Any
) -> None:
    for _ in range(3):
        await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server, capacity=2)
    calls = [stub.Unary(echo.Text(text="wait")) for _ in range(6)]
    await until(lambda: servicer.calls == 6, "each replica holds two calls")
    servicer.go.set()
    await asyncio.gather(*calls)
    assert servicer.calls == 6


# --- before ACCEPT ---


async def test_cancelling_at_the_door_withdraws_the_call(
    stub: Any, world: Any, echo: SimpleNamespace, until: Any
) -> None:
    call = stub.Unary(echo.Text(), wait_for_ready=True)
    await until(lambda: queued(world, 1), "the call is at the door")
    call.cancel()
    await until(lambda: empty(world), "the call is withdrawn")


async def test_a_deadline_at_the_door_withdraws_the_call(
    stub: Any, world: Any, echo: SimpleNamespace, until: Any
) -> None:
    error = await error_of(stub.Unary(echo.Text(), wait_for_ready=True, timeout=0.1))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: empty(world), "the call is withdrawn")


async def test_an_accept_that_comes_too_late_is_answered_with_cancel(
    world: Any, client: Node, stub: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    node, faults = await world.faulty_node("server")
    await world.serve(node, servicer, echo.add_EchoServicer_to_server)
    faults.lag = 0.2
    call = stub.Unary(echo.Text(text="wait"))
    await servicer.started.wait()
    call.cancel()
    async with asyncio.timeout(5):
        await servicer.cancelled.wait()


async def test_a_call_of_a_replica_that_died_before_it_accepted_is_served_by_another(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    dead = await world.bus().connect("server-dead")
    await dead.take_lease(b"{}", 0.2)
    await dead.join(DOOR)
    call = stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    assert len(await dead.take(DOOR, 1)) == 1
    assert await world.pending() != {}
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    async with asyncio.timeout(10):
        assert (await call).text == "x"
    await dead.close(goodbye=False)


async def test_a_call_of_a_replica_that_lives_is_left_to_it(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    slow = await world.bus().connect("server-slow")
    await slow.take_lease(b"{}", 2.0)
    await slow.join(DOOR)
    call = stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    assert len(await slow.take(DOOR, 1)) == 1
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    await asyncio.sleep(1.2)
    assert servicer.calls == 0
    async with asyncio.timeout(10):
        assert (await call).text == "x"
    await slow.close(goodbye=False)


async def test_a_call_that_was_given_and_never_arrived_is_taken_again(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    node = await world.node("server")
    await node.link.join(DOOR)
    call = stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    await node.link.take(DOOR, 1)  # as if the reply had been lost with its connection
    await world.serve(node, servicer, echo.add_EchoServicer_to_server)
    async with asyncio.timeout(10):
        assert (await call).text == "x"


# --- attempts ---


async def test_a_call_that_cost_two_servers_is_refused(
    stub: Any, world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    nodes = [await world.faulty_node("server") for _ in range(3)]
    for node, _ in nodes:
        await world.serve(node, servicer, echo.add_EchoServicer_to_server, capacity=1)

    async def call_that_kills(resumption: Resumption) -> None:
        while True:
            call = stub.Unary(echo.Text(text="wait"), metadata=resumption.metadata(), wait_for_ready=True)
            await call.wait_for_connection()
            next(faults for node, faults in nodes if node.id == call._core.server).disconnect()
            try:
                await call
            except AioRpcError as error:
                resumption.retry_or_raise(error)

    with pytest.raises(AioRpcError) as caught:
        await call_that_kills(Resumption())
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert servicer.calls == 2
    for _, faults in nodes:
        faults.reconnect()


async def test_progress_forgives(stub: Any, world: Any, echo: SimpleNamespace, servicer: Any) -> None:
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    error = await error_of(stub.Unary(echo.Text(), metadata=(("quire-attempt", "2"),)))
    assert error.code() is grpc.StatusCode.ABORTED
    await stub.Unary(echo.Text(), metadata=(("quire-attempt", "1"),))
    await stub.Unary(echo.Text(), metadata=(("quire-attempt", "nonsense"),))


# --- bad entries ---


async def test_malformed_entries_become_dead_letters(
    world: Any, client: Node, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    server = await world.node("server")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    no_open = Entry(sender="x", epoch=1)
    no_open.requests.add(call=1, seq=1, kind=Kind.MESSAGE)
    no_method = Entry(sender="x", epoch=1)
    no_method.requests.add(call=1, seq=1, kind=Kind.OPEN)
    two_calls = Entry(sender="x", epoch=1)
    two_calls.requests.add(call=1, seq=1, kind=Kind.OPEN).open.method = "/contract.Echo/Unary"
    two_calls.requests.add(call=2, seq=1, kind=Kind.OPEN).open.method = "/contract.Echo/Unary"
    bad = [b"\xff\xff\xff", b"", *(entry.SerializeToString() for entry in (no_open, no_method, two_calls))]
    for payload in bad:
        await world.add(DOOR, {b"e": payload})
    await world.add(DOOR, {b"garbage": b"\xff\x00"})
    for node in (client, server):
        await world.add(f"inbox:{node.id}", {b"garbage": b"\xff\x00"})
        await world.add(f"inbox:{node.id}", {b"e": b"\xff\xff\xff"})

    async def buried() -> bool:
        return len(await world.dead_letters()) == len(bad) + 1 + 4

    await until(buried, "each has its letter")
    letters = await world.dead_letters()
    assert sum(letter.startswith(DOOR) for letter in letters) == len(bad) + 1
    assert any("without a method" in letter for letter in letters)
    assert (await stub.Unary(echo.Text(text="x"))).text == "x"
    assert await world.length(DOOR) == 0


# --- what stays behind ---


async def test_streams_do_not_grow(
    world: Any, client: Node, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    server = await world.node("server")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    for _ in range(20):
        await stub.Unary(echo.Text())
    call = stub.Chat()
    for _ in range(20):
        await call.write(echo.Text())
        await call.read()
    await call.done_writing()

    async def trimmed() -> bool:
        inboxes = [await world.length(f"inbox:{node.id}") for node in (client, server)]
        return await world.length(DOOR) == 0 and inboxes == [0, 0]

    await until(trimmed, "what was read is dropped")


async def test_nothing_is_written_for_the_dead(
    world: Any, client: Node, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    call = stub.Stream(echo.Text(text="wait", count=1))
    await call.read()
    await client.__aexit__(None, None, None)
    assert not await world.exists(f"inbox:{client.id}")
    servicer.go.set()
    await asyncio.sleep(0.1)
    assert not await world.exists(f"inbox:{client.id}")


async def test_an_inbox_expires_after_its_process(world: Any) -> None:
    if world.redis is None:
        return  # memory ends with its process
    node = await world.node()
    assert 0 < await world.redis.ttl(f"{world.prefix}inbox:{node.id}") <= 600
