"""What only the bus has: front doors, and who takes what from them."""

import asyncio
import contextlib
import time
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError

from proto.rpc import BusAway, Node, Resumption, from_outside
from proto.rpc import server as server_module
from proto.rpc.bus import Received, door_of
from proto.rpc.frames import decode_opening
from proto.rpc.lease import killed_note
from proto.rpc.resume import LOST, OUTSIDE, REFUSED_ATTEMPT, SUSPECT_ATTEMPT
from proto.wire_pb2 import Entry, Kind
from tests.contract.conftest import LIMIT

DOOR = door_of("contract.Echo")


async def error_of(call: Any) -> AioRpcError:
    with pytest.raises(AioRpcError) as caught:
        async with asyncio.timeout(LIMIT):
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
    await until(lambda: empty(world), "nothing is left at the door")


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
    await until(lambda: queued(world, 1), "one is left at the door")
    servicer.go.set()
    await asyncio.gather(*calls)
    assert servicer.calls == 5


async def test_a_full_server_joins_a_door_again_that_has_lost_its_group(
    stub: Any, world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    node = await world.node("server")
    await world.serve(node, servicer, echo.add_EchoServicer_to_server, capacity=1)
    calls = [stub.Unary(echo.Text(text="wait"), wait_for_ready=True) for _ in range(2)]
    await servicer.started.wait()
    await until(lambda: queued(world, 1), "one runs and one waits")
    await world.drop_group(DOOR)

    async def joined() -> bool:
        with contextlib.suppress(BusAway):
            return (await node.link.look(DOOR)).waiting == 1
        return False

    await until(joined, "it has joined while it is full")
    assert servicer.calls == 1
    servicer.go.set()
    await asyncio.gather(*calls)


async def test_capacity_0_takes_none(
    stub: Any, world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    server = await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    await stub.Unary(echo.Text())
    server.set_capacity(0)
    await until(lambda: server._asked == 0, "the read that waited for more calls is broken off")
    call = stub.Unary(echo.Text())
    await until(lambda: queued(world, 1), "the call is at the door")
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
    assert call.cancelled()


async def test_a_deadline_at_the_door_withdraws_the_call(
    stub: Any, world: Any, echo: SimpleNamespace, until: Any
) -> None:
    error = await error_of(stub.Unary(echo.Text(), wait_for_ready=True, timeout=0.1))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: empty(world), "the call is withdrawn")


async def test_clocks_that_disagree_move_no_deadline(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    for shift in (-60.0, 60.0):
        with monkeypatch.context() as there:
            there.setattr(time, "time", lambda shift=shift: now() + shift)
            call = stub.Unary(echo.Text(text="context"), wait_for_ready=True, timeout=30)
        await asyncio.sleep(0.5)
        if shift < 0:  # it was at the door
            await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
        await call
        assert 0 < servicer.seen[0] < 30 - (0.4 if shift < 0 else 0)


async def test_an_accept_that_comes_too_late_is_answered_with_cancel(
    world: Any, client: Node, stub: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    node, faults = await world.faulty_node("server")
    await world.serve(node, servicer, echo.add_EchoServicer_to_server)
    faults.lag = 0.2
    call = stub.Unary(echo.Text(text="wait"))
    await servicer.started.wait()
    call.cancel()
    async with asyncio.timeout(LIMIT):
        await servicer.cancelled.wait()
    assert call.cancelled()
    assert servicer.calls == 1


async def test_a_call_of_a_replica_that_died_before_it_accepted_is_served_by_another(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    dead = await world.replica("server-dead", DOOR)
    call = stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    assert len(await dead.take(DOOR, 1)) == 1
    assert await world.pending() != {}
    await world.drop_lease("server-dead")
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    async with asyncio.timeout(LIMIT):
        assert (await call).text == "x"
    await dead.close(goodbye=False)


async def test_a_call_of_a_replica_that_lives_is_left_to_it(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    slow = await world.replica("server-slow", DOOR)
    call = stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    assert len(await slow.take(DOOR, 1)) == 1
    node = await world.node("server")
    adopt, found = node.link.adopt, []

    async def noted(*asked: Any) -> Any:
        found.append(await adopt(*asked))
        return found[-1]

    node.link.adopt = noted  # type: ignore[method-assign]
    await world.serve(node, servicer, echo.add_EchoServicer_to_server)
    await until(lambda: len(found) >= 3, "it has looked for calls of the dead")
    assert found == [None] * len(found)
    assert servicer.calls == 0
    await world.drop_lease("server-slow")
    async with asyncio.timeout(LIMIT):
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
    async with asyncio.timeout(LIMIT):
        assert (await call).text == "x"


# --- calls that are pending for a process which has no room for them ---


async def given_unseen(world: Any, node: Node, stub: Any, echo: SimpleNamespace, until: Any) -> Any:
    """A call that Redis has given to a process, as if the reply had been lost with its connection."""
    call = stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    await until(lambda: queued(world, 1), "it is at the door")
    assert len(await node.link.take(DOOR, 1)) == 1
    return call


@pytest.fixture
async def full(world: Any, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any) -> SimpleNamespace:
    """A process that serves as many calls as it can hold: one, which takes long."""
    node = await world.node("server")
    await world.serve(node, servicer, echo.add_EchoServicer_to_server, capacity=1)
    call = stub.Unary(echo.Text(text="wait"))
    await until(lambda: servicer.calls == 1, "it is served")
    return SimpleNamespace(node=node, call=call)


async def test_a_call_that_is_pending_for_a_full_process_goes_to_another(
    world: Any, full: SimpleNamespace, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    call = await given_unseen(world, full.node, stub, echo, until)
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    async with asyncio.timeout(LIMIT):
        assert (await call).text == "x"
    servicer.go.set()
    assert (await full.call).text == "wait"


async def test_a_call_that_was_given_back_comes_again_if_nobody_else_has_room(
    world: Any, full: SimpleNamespace, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    given_back = asyncio.Event()
    give_back = full.node.link.give_back

    async def noted(*entries: Any) -> None:
        await give_back(*entries)
        given_back.set()

    full.node.link.give_back = noted
    call = await given_unseen(world, full.node, stub, echo, until)
    async with asyncio.timeout(LIMIT):
        await given_back.wait()
        assert servicer.calls == 1
        servicer.go.set()
        assert (await call).text == "x"
    assert (await full.call).text == "wait"


async def test_a_process_that_stops_gives_back_what_it_does_not_take(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    leaving = await world.node("server")
    server = await world.serve(leaving, servicer, echo.add_EchoServicer_to_server)
    long = stub.Unary(echo.Text(text="wait"))
    await until(lambda: servicer.calls == 1, "it is served")
    stopping = asyncio.ensure_future(server.stop(60))
    await until(lambda: server._taker.done(), "it takes no more calls")
    call = await given_unseen(world, leaving, stub, echo, until)
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    async with asyncio.timeout(LIMIT):
        assert (await call).text == "x"
    assert not stopping.done()
    servicer.go.set()
    await asyncio.gather(long, stopping)


async def test_calls_from_two_sides_are_no_more_than_a_process_can_hold(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """A worker that accepted two would let the second scheduler wait until the first one has gone."""
    calls = [stub.Unary(echo.Text(text="wait"), wait_for_ready=True)]
    await until(lambda: queued(world, 1), "it is at the door")
    await dies_with(world, FIRST, 1)
    node = await world.node("server")
    adopt, back = node.link.adopt, asyncio.Event()

    async def late(*asked: Any) -> Any:
        received = await adopt(*asked)
        if received is not None and len(calls) == 1:
            calls.append(stub.Unary(echo.Text(text="wait"), wait_for_ready=True))
            await until(lambda: servicer.calls == 1, "one from the door has come meanwhile")
        return received

    async def give_back(*entries: Any) -> None:
        await put_back(*entries)
        back.set()

    put_back = node.link.give_back
    node.link.adopt, node.link.give_back = late, give_back  # type: ignore[method-assign]
    await world.serve(node, servicer, echo.add_EchoServicer_to_server, capacity=1)
    async with asyncio.timeout(LIMIT):
        await back.wait()
    assert servicer.calls == 1
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    await until(lambda: servicer.calls == 2, "the other one has it")
    servicer.go.set()
    await asyncio.gather(*calls)


async def test_what_is_given_back_is_taken_as_if_it_had_not_been_given(
    world: Any, stub: Any, echo: SimpleNamespace, until: Any
) -> None:
    one, two, three = [await world.replica(name, DOOR) for name in ("server-1", "server-2", "server-3")]
    call = stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    (taken,) = await one.take(DOOR, 1)
    assert await two.adopt(DOOR, of_the_dead=True) is None, "it is pending for one that lives"
    for giver, taker in ((one, two), (two, one)):
        await giver.give_back(DOOR, [taken.id, "1-1"])
        assert await giver.pending(DOOR) == []
        assert await taker.adopt(DOOR, of_the_dead=False) == taken
        assert await taker.pending(DOOR) == [taken]
        await three.give_back(DOOR, [taken.id])
        assert await taker.pending(DOOR) == [taken], "it was not for others to give"
    await world.drop_lease("server-1")
    assert await two.adopt(DOOR, of_the_dead=False) is None, "it was not given back"
    assert (await two.adopt(DOOR, of_the_dead=True)).deliveries == 2
    await two.give_back(DOOR, [taken.id])
    call.cancel()
    await until(lambda: empty(world), "it can be withdrawn meanwhile")
    assert await three.adopt(DOOR, of_the_dead=True) is None
    for link in (one, two, three):
        await link.close(goodbye=True)


# --- what is measured ---


async def test_what_lies_at_a_door(world: Any, stub: Any, echo: SimpleNamespace, until: Any) -> None:
    """Calls that wait, and those that were taken, given back and withdrawn; and how old the oldest is."""
    one, two = [await world.replica(name, DOOR) for name in ("server-1", "server-2")]
    assert await one.look(DOOR) == (0, 0, 0)
    calls = [stub.Unary(echo.Text(text="x"), wait_for_ready=True) for _ in range(3)]
    await until(lambda: queued(world, 3), "they are at the door")
    assert (await one.look(DOOR))[:2] == (3, 0)
    (first,) = await one.take(DOOR, 1)
    await two.take(DOOR, 1)
    await one.give_back(DOOR, [first.id])
    state = await two.look(DOOR)
    assert state[:2] == (1, 2), "of all processes; what was given back is pending for nobody"

    async def aged() -> bool:
        return bool((await two.look(DOOR)).oldest_seconds > state.oldest_seconds)

    await until(aged, "time passes")
    for call in calls:
        call.cancel()
    await until(lambda: empty(world), "they are withdrawn")
    assert (await one.look(DOOR)).oldest_seconds == 0
    for link in (one, two):
        await link.close(goodbye=True)


async def test_how_long_a_call_lay_at_its_door(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    link = await world.replica("looks", DOOR)
    call = stub.Unary(echo.Text(text="x"), wait_for_ready=True)

    async def old() -> bool:
        return bool((await link.look(DOOR)).oldest_seconds >= 0.05)

    await until(old, "it waits")
    node, found = await world.node("server"), []
    node.measure_wait = lambda server, seconds: found.append((server.service, server.pool, seconds))
    await world.serve(node, servicer, echo.add_EchoServicer_to_server)
    async with asyncio.timeout(LIMIT):
        assert (await call).text == "x"
        assert (await stub.Unary(echo.Text(text="y"))).text == "y"
    (service, pool, waited), (_, _, at_once) = found
    assert (service, pool) == ("Echo", "")
    assert waited >= 0.05
    assert at_once >= 0
    ((server, state),) = await node.look()
    assert (server.service, state[:2]) == ("Echo", (0, 0))
    await link.close(goodbye=True)


# --- attempts ---


async def test_a_call_that_ends_its_servers_is_refused(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    nodes = [await world.faulty_node("server") for _ in range(REFUSED_ATTEMPT + 1)]
    for node, _ in nodes:
        await world.serve(node, servicer, echo.add_EchoServicer_to_server, capacity=1)

    async def call_that_kills(resumption: Resumption) -> None:
        while True:
            began = servicer.calls
            call = stub.Unary(echo.Text(text="wait"), metadata=resumption.metadata(), wait_for_ready=True)
            await call.wait_for_connection()
            while servicer.calls == began and not call.done():
                await asyncio.sleep(0.005)
            if servicer.calls > began:
                await world.die(*next(one for one in nodes if one[0].id == call._core.server))
            try:
                await call
            except AioRpcError as error:
                resumption.retry_or_raise(error)

    with pytest.raises(AioRpcError) as caught:
        await call_that_kills(Resumption())
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert "one process after the other" in (caught.value.details() or "")
    assert servicer.calls == REFUSED_ATTEMPT
    for _, faults in nodes:
        faults.reconnect()


async def test_progress_forgives(stub: Any, world: Any, echo: SimpleNamespace, servicer: Any) -> None:
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    metadata = (("quire-attempt", str(REFUSED_ATTEMPT)),)
    error = await error_of(stub.Unary(echo.Text(), metadata=metadata))
    assert error.code() is grpc.StatusCode.ABORTED
    for attempt in range(REFUSED_ATTEMPT):
        await stub.Unary(echo.Text(), metadata=(("quire-attempt", str(attempt)),))
    for nonsense in ("nonsense", "²", "9" * 5000):
        assert (await stub.Unary(echo.Text(text="x"), metadata=(("quire-attempt", nonsense),))).text == "x"


def suspect(attempt: int = SUSPECT_ATTEMPT) -> tuple[tuple[str, str], ...]:
    return (("quire-attempt", str(attempt)),)


async def test_a_server_has_one_suspect_at_a_time(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    first = stub.Unary(echo.Text(text="wait"), metadata=suspect())
    await until(lambda: servicer.calls == 1, "the first one runs")
    others = [stub.Unary(echo.Text(text="x"), metadata=suspect()) for _ in range(3)]
    for other in others:
        await other.wait_for_connection()
    assert (await stub.Unary(echo.Text(text="innocent"))).text == "innocent"
    assert servicer.calls == 2
    others.pop().cancel()  # gives its turn up
    servicer.go.set()
    async with asyncio.timeout(LIMIT):
        assert [(await call).text for call in (first, *others)] == ["wait", "x", "x"]
    assert servicer.calls == 4


async def test_a_first_response_ends_a_suspects_turn(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    streaming = stub.Stream(echo.Text(text="wait", count=1), metadata=suspect())
    async with asyncio.timeout(LIMIT):
        await streaming.read()
        assert (await stub.Unary(echo.Text(text="x"), metadata=suspect())).text == "x"
        cancelled = stub.Unary(echo.Text(text="wait"), metadata=suspect())
        await cancelled.wait_for_connection()
        cancelled.cancel()
        assert (await stub.Unary(echo.Text(text="x"), metadata=suspect())).text == "x"
    streaming.cancel()


async def test_only_the_suspect_whose_turn_it_is_counts_a_death(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    server, faults = await world.faulty_node("server")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    runs = stub.Unary(echo.Text(text="wait"), metadata=suspect())
    await until(lambda: servicer.calls == 1, "it runs")
    waits = stub.Unary(echo.Text(text="x"), metadata=suspect())
    await waits.wait_for_connection()
    await world.die(server, faults)
    assert not from_outside(await error_of(runs))
    assert from_outside(await error_of(waits))
    faults.reconnect()


async def test_what_happens_to_a_server_from_outside_is_told(
    world: Any, client: Node, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    stub = echo.EchoStub(client.channel())
    for how in ("stopped", "silent", "killed", ""):
        server, faults = await world.faulty_node("server")
        served = await world.serve(server, servicer, echo.add_EchoServicer_to_server)
        calls = servicer.calls
        call = stub.Unary(echo.Text(text="wait"), wait_for_ready=True)
        await until(lambda calls=calls: servicer.calls > calls, "it is served")
        if how == "stopped":
            await served.stop(0)
        elif how == "silent":
            await world.drop_lease(server.id)
            await server._write_lease()  # it finds its lease lost, and takes it anew
        else:
            if how == "killed":
                await world.set_lease(killed_note(server.id), b"")
            await world.die(server, faults)
        error = await error_of(call)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(error.trailing_metadata() or ()).get(OUTSIDE, "") == how
        faults.reconnect()
        await served.stop(0)


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
    assert (client.outbox.buried, server.outbox.buried) == (2, len(bad) + 1 + 2)
    assert any("without a method" in letter for letter in letters)
    assert (await stub.Unary(echo.Text(text="x"))).text == "x"
    await until(lambda: empty(world), "nothing is left at the door")


async def test_whatever_reading_an_entry_raises_the_next_one_is_read(
    world: Any,
    stub: Any,
    echo: SimpleNamespace,
    servicer: Any,
    until: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decode(payload: bytes) -> Entry:
        if payload == b"deep":
            raise RecursionError("maximum recursion depth exceeded")
        if payload == b"half":
            raise OverflowError("\ud800" * 1000)
        return decode_opening(payload)

    monkeypatch.setattr(server_module, "decode_opening", decode)
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    for payload in (b"deep", b"half"):
        await world.add(DOOR, {b"e": payload})
    assert (await stub.Unary(echo.Text(text="x"))).text == "x"
    await until(lambda: buried(world, 2), "each has its letter")
    assert any("RecursionError: maximum" in letter for letter in await world.dead_letters())


async def buried(world: Any, letters: int) -> bool:
    return len(await world.dead_letters()) == letters


async def test_a_frame_that_cannot_be_taken_in_ends_its_call_alone(
    world: Any, client: Node, stub: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    calls = [stub.Stream(echo.Text(text="wait", count=1)) for _ in range(3)]
    for call in calls:
        await call.read()

    def receive(*frame: Any) -> None:
        raise OverflowError

    calls[1]._core.receive = receive
    servicer.go.set()
    assert [await call.read() for call in (calls[0], calls[2])] == [grpc.aio.EOF] * 2
    assert (await error_of(calls[1].read())).code() is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize(
    "lease",
    [
        b'{"service": "server", "epoch": Infinity, "info": {}, "doors": []}',
        b'{"service": "server", "epoch": 1, "info": {}, "doors": [[1]]}',
        b'{"service": "server", "epoch": 1, "info": ' + b"[" * 9000 + b"]" * 9000 + b"}",
    ],
    ids=["infinite", "doors", "deep"],
)
async def test_a_lease_that_cannot_be_read_stops_nobody(
    world: Any, client: Node, stub: Any, echo: SimpleNamespace, servicer: Any, lease: bytes
) -> None:
    await world.set_lease("hostile-1", lease)
    assert (await error_of(stub.Unary(echo.Text()))).code() is grpc.StatusCode.UNAVAILABLE
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    assert (await stub.Unary(echo.Text(text="x"))).text == "x"
    assert {one.service for one in await client.leases()} >= {"client", "server"}


class Panic(BaseException):
    """As an extension in Rust raises it."""


@pytest.mark.parametrize("way", ["panic", "code", "details"])
async def test_a_call_ends_however_its_handler_fails(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any, way: str
) -> None:
    async def fail(request: Any, context: Any) -> Any:
        if way == "panic":
            raise Panic("\ud800")
        elif way == "code":
            context.set_code(13)
        else:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "\ud800")
        return echo.Text()

    servicer.Unary = fail
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server, capacity=1)
    for _ in range(2):  # its place is free again
        error = await error_of(stub.Unary(echo.Text()))
        assert error.code() is not grpc.StatusCode.OK


# --- entries that end who reads them ---


FIRST = "dead-9"


async def dies_with(world: Any, name: str, calls: int) -> list[Received]:
    """A process that takes, or else takes over, calls at the door, and is gone before it has accepted any."""
    link = await world.replica(name, DOOR)
    if name == FIRST:
        taken = list(await link.take(DOOR, calls))
    else:
        taken = [await link.adopt(DOOR, of_the_dead=True) for _ in range(calls)]
    await link.close(goodbye=False)
    await world.drop_lease(name)
    return taken


async def test_an_entry_that_ends_its_readers_is_a_dead_letter_and_those_beside_it_are_served(
    world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    stub = echo.EchoStub((await world.node("client", quiet_seconds=0.2)).channel())
    killer = stub.Unary(echo.Text(text="killer"), wait_for_ready=True)
    await until(lambda: queued(world, 1), "it is at the door")
    others = [stub.Unary(echo.Text(text="x"), wait_for_ready=True) for _ in range(3)]
    await until(lambda: queued(world, 4), "all are at the door")
    assert [one.deliveries for one in await dies_with(world, FIRST, 4)] == [1] * 4
    for name, deliveries in (("dead-8", 2), ("dead-7", 3)):
        (taken,) = await dies_with(world, name, 1)
        assert (b"killer" in taken.payload, taken.deliveries) == (True, deliveries)
    link = await world.replica("dead-6", DOOR)
    unread = await link.adopt(DOOR, of_the_dead=True)
    assert (unread.payload, unread.deliveries) == (None, 4), "reading it has ended three"
    assert await link.pending(DOOR) == [unread]
    await link.close(goodbye=False)
    await world.drop_lease("dead-6")
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    async with asyncio.timeout(LIMIT):
        assert [(await other).text for other in others] == ["x"] * 3
    await until(lambda: buried(world, 1), "it is not read a fourth time")
    assert "4 processes ended" in (await world.dead_letters())[0]
    await until(lambda: empty(world), "nothing is left at the door")
    assert servicer.calls == 3
    error = await error_of(killer)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert LOST in dict(error.trailing_metadata() or ()), "tried again it becomes a suspect"
    assert not from_outside(error)


async def test_calls_of_a_dead_process_are_taken_over_within_the_capacity(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    calls = [stub.Unary(echo.Text(text="wait"), wait_for_ready=True) for _ in range(20)]
    await until(lambda: queued(world, 20), "they are at the door")
    assert len(await dies_with(world, FIRST, 20)) == 20
    server = await world.node("server")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server, capacity=3)
    await until(lambda: servicer.calls == 3, "as many as it can hold")
    await asyncio.sleep(0.3)
    assert servicer.calls == 3
    servicer.go.set()
    async with asyncio.timeout(LIMIT):
        assert len(await asyncio.gather(*calls)) == 20


async def test_a_call_that_was_settled_and_is_pending_again_is_settled_again(
    world: Any, stub: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    """As of a Redis that was restarted without its last writes."""
    server = await world.node("server")
    served = await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    served.outbox.settle = lambda door, entry: None
    assert (await stub.Unary(echo.Text(text="x"))).text == "x"
    assert await world.pending() != {}
    del served.outbox.settle
    await world.none_pending()
    assert servicer.calls == 1


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
    assert servicer.calls == 21


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


async def test_a_door_is_kept_by_those_who_serve_it(
    world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """Callers of an older version do not keep it."""
    if world.redis is None:
        return  # doors in memory stay
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    key = world.prefix + DOOR
    assert await world.redis.expire(key, 100)

    async def kept() -> bool:
        return bool(await world.redis.ttl(key) > 100)

    await until(kept, "its time begins anew")
