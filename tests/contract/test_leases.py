"""What only the bus has: processes that watch over each other."""

import asyncio
import gc
import time
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError

from proto.rpc import BusAway
from proto.rpc.bus import door_of
from proto.rpc.resume import LOST
from proto.wire_pb2 import Entry, Kind
from tests.contract.conftest import LIMIT


async def error_of(call: Any) -> AioRpcError:
    with pytest.raises(AioRpcError) as caught:
        async with asyncio.timeout(LIMIT):
            await call
    return caught.value


async def test_the_leases_are_the_list_of_what_runs(world: Any) -> None:
    one = await world.node("worker", info={"model": "m"})
    two = await world.node("gateway")
    leases = {lease.process_id: lease for lease in await two.leases()}
    assert set(leases) == {one.id, two.id}
    assert (leases[one.id].service, leases[one.id].epoch, leases[one.id].info) == (
        "worker",
        1,
        {"model": "m"},
    )
    await one.update(workers=2)
    assert {lease.process_id: lease.info for lease in await two.leases()}[one.id] == {
        "model": "m",
        "workers": 2,
    }
    await one.__aexit__(None, None, None)
    assert [lease.process_id for lease in await two.leases()] == [two.id]


async def test_a_lease_is_renewed_for_as_long_as_its_process_lives(world: Any, until: Any) -> None:
    node = await world.node()
    end = await world.end_of_lease(node.id)

    async def renewed() -> bool:
        return await world.end_of_lease(node.id) > end

    for _ in range(3):
        await until(renewed, "it lasts longer than before")
        end = await world.end_of_lease(node.id)
    assert [lease.process_id for lease in await node.leases()] == [node.id]
    assert node.epoch == 1


async def test_a_call_ends_when_its_server_dies(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace
) -> None:
    call = pair.stub.Stream(echo.Text(text="wait", count=3))
    assert [(await call.read()).count for _ in range(3)] == [0, 1, 2]
    await world.die(pair.server, pair.server_faults)
    error = await error_of(call.read())
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert (LOST, pair.server.id) in tuple(error.trailing_metadata() or ())
    pair.server_faults.reconnect()


async def test_what_a_server_sent_before_it_died_still_counts(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    call = pair.stub.Stream(echo.Text(text="wait", count=50))
    assert (await call.read()).count == 0
    await pair.server.outbox.empty()
    await world.drop_lease(pair.server.id)
    assert [(await call.read()).count for _ in range(49)] == list(range(1, 50))
    assert (await error_of(call.read())).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_that_leaves_ends_its_calls(pair: SimpleNamespace, echo: SimpleNamespace) -> None:
    call = pair.stub.Unary(echo.Text(text="wait"))
    await call.wait_for_connection()
    await pair.server.__aexit__(None, None, None)
    error = await error_of(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert LOST not in dict(tuple(error.trailing_metadata() or ())), "nobody has died"


async def test_a_handler_is_cancelled_when_its_caller_dies(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    call = pair.stub.Unary(echo.Text(text="wait"))
    await servicer.started.wait()
    await world.die(pair.client, pair.client_faults)
    async with asyncio.timeout(LIMIT):
        await servicer.cancelled.wait()
    pair.client_faults.reconnect()
    assert (await error_of(call)).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_call_that_is_forgotten_is_cancelled(
    pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any
) -> None:
    async for message in pair.stub.Stream(echo.Text(text="wait", count=1)):
        assert message.count == 0
        break
    gc.collect()
    async with asyncio.timeout(LIMIT):
        await servicer.cancelled.wait()


async def test_a_process_that_lost_its_lease_drops_its_calls(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    call = pair.stub.Unary(echo.Text(text="wait"))
    await servicer.started.wait()
    await world.drop_lease(pair.server.id)
    async with asyncio.timeout(LIMIT):
        await servicer.cancelled.wait()
    error = await error_of(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    await until(lambda: pair.server.epoch == 2, "a new epoch")
    assert (await pair.stub.Unary(echo.Text(text="again"), wait_for_ready=True)).text == "again"
    assert {lease.epoch for lease in await pair.client.leases() if lease.service == "server"} == {2}


async def test_a_client_that_lost_its_lease_drops_its_calls(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    call = pair.stub.Unary(echo.Text(text="wait"))
    await servicer.started.wait()
    await world.drop_lease(pair.client.id)
    assert (await error_of(call)).code() is grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(LIMIT):
        await servicer.cancelled.wait()
    assert (await pair.stub.Unary(echo.Text(text="again"))).text == "again"


async def test_a_process_that_was_cut_off_fences_itself(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    await world.die(pair.server, pair.server_faults)
    assert await absent(pair.client, pair.server)
    pair.server_faults.reconnect()
    await until(lambda: pair.server.epoch == 2, "a new epoch")
    assert (await pair.stub.Unary(echo.Text(text="again"), wait_for_ready=True)).text == "again"


async def late_for_its_lease(world: Any, node: Any) -> asyncio.Event:
    """A process whose lease runs out as it is about to renew it, which it does when the event is set."""
    asked, renewing = asyncio.Event(), asyncio.Event()
    renew = node.link.renew_lease

    async def late(*lease: Any) -> Any:
        asked.set()
        await renewing.wait()
        return await renew(*lease)

    node.link.renew_lease = late
    await asked.wait()
    await world.expire(node)
    return renewing


async def test_calls_wait_until_a_lease_that_ran_out_is_taken_anew(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    """As in a process that was stopped and finds calls at its door first: it would drop them again."""
    renewing = await late_for_its_lease(world, pair.server)
    assert await absent(pair.client, pair.server)
    call = pair.stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    await asyncio.sleep(0.1)
    assert not call.done()
    renewing.set()
    assert (await call).text == "x"
    assert (pair.server.epoch, servicer.calls) == (2, 1)


async def test_calls_are_taken_though_the_bus_cannot_say_which_are_pending(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, until: Any
) -> None:
    (door,) = pair.server._servers
    renewing = await late_for_its_lease(world, pair.server)

    async def waits() -> bool:
        await pair.server.link.wake(door.door)
        return bool(door._asked == 0)

    async def pending(door: str) -> Any:
        raise BusAway("it cannot say")

    await until(waits, "it takes no calls without a lease")
    pair.server.link.pending = pending
    renewing.set()
    async with asyncio.timeout(LIMIT):
        assert (await pair.stub.Unary(echo.Text(text="x"), wait_for_ready=True)).text == "x"


async def test_a_process_that_fences_itself_keeps_no_more_calls_than_it_can_hold(
    world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """As a worker that was stopped for long, at whose door two schedulers have a call."""
    node, client = await world.node("server"), await world.node("client")
    await world.serve(node, servicer, echo.add_EchoServicer_to_server, capacity=1)
    renewing = await late_for_its_lease(world, node)
    stub = echo.EchoStub(client.channel())
    calls = [stub.Unary(echo.Text(text="wait"), wait_for_ready=True) for _ in range(2)]
    await until(world.pending, "one is given to it")
    await asyncio.sleep(0.1)
    renewing.set()
    await until(lambda: servicer.calls == 1, "it takes one")
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server, capacity=1)
    await until(lambda: servicer.calls == 2, "another one takes the other")
    servicer.go.set()
    assert [one.text for one in await asyncio.gather(*calls)] == ["wait"] * 2
    assert servicer.calls == 2, "each ran once"


async def test_an_inbox_that_is_made_anew_may_count_from_lower_ids(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, until: Any
) -> None:
    """As of a Redis that has lost its data and whose clock is behind."""
    if world.redis is None:
        pytest.skip("ids in memory only grow")
    inbox = f"{world.prefix}inbox:{pair.client.id}"
    nothing = Entry(sender="nobody", epoch=1).SerializeToString()
    await world.redis.xadd(inbox, {b"e": nothing}, "9999999999999-1")
    assert (await pair.stub.Unary(echo.Text(text="x"))).text == "x"
    await world.redis.delete(inbox, f"{world.prefix}alive:{pair.client.id}")
    await world.redis.client_kill_filter(_type="normal", skipme=True)
    await until(lambda: pair.client.epoch == 2, "a new epoch")
    async with asyncio.timeout(LIMIT):
        assert (await pair.stub.Unary(echo.Text(text="x"), wait_for_ready=True)).text == "x"


@pytest.mark.parametrize("late", ["client", "server"])
async def test_a_lease_that_was_read_before_its_process_fenced_itself_ends_no_later_call(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, servicer: Any, until: Any, late: str
) -> None:
    """Who looks at leases reads its inbox before it judges, and calls of the newer epoch may be there."""
    reader, other = (pair.client, pair.server) if late == "client" else (pair.server, pair.client)
    await world.drop_lease(other.id)
    await until(lambda: other.epoch == 2, "a new epoch")
    looks, leases = 0, reader.link.leases

    async def older(process_ids: Any = None) -> Any:
        nonlocal looks
        looks += 1
        found = await leases(process_ids)
        return {one: value.replace(b'"epoch": 2', b'"epoch": 1') for one, value in found.items()}

    reader.link.leases = older
    call = pair.stub.Unary(echo.Text(text="wait"), wait_for_ready=True)
    await servicer.started.wait()
    looked = looks
    await until(lambda: looks > looked + 2, "it looks at the lease")
    servicer.go.set()
    assert (await call).text == "wait"


async def queued(world: Any) -> bool:
    return await world.length(door_of("contract.Echo")) == 1


async def absent(observer: Any, process: Any) -> bool:
    return process.id not in {lease.process_id for lease in await observer.leases()}


async def test_a_short_absence_costs_nothing(
    pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any
) -> None:
    call = pair.stub.Stream(echo.Text(text="wait", count=2))
    assert (await call.read()).count == 0
    for faults in (pair.server_faults, pair.client_faults):
        faults.disconnect()
    await asyncio.sleep(0.15)
    for faults in (pair.server_faults, pair.client_faults):
        faults.reconnect()
    servicer.go.set()
    assert (await call.read()).count == 1
    assert await call.read() is grpc.aio.EOF
    assert (pair.server.epoch, pair.client.epoch) == (1, 1)


async def test_frames_of_an_older_epoch_are_dropped(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    await world.drop_lease(pair.server.id)
    await until(lambda: pair.server.epoch == 2, "a new epoch")
    call = pair.stub.Stream(echo.Text(text="wait", count=1), wait_for_ready=True)
    assert (await call.read()).count == 0
    stale = Entry(sender=pair.server.id, epoch=1)
    for number in range(1, 10):
        stale.responses.add(call=number, seq=3, kind=Kind.STATUS).status.code = 13
    await world.add(f"inbox:{pair.client.id}", {b"e": stale.SerializeToString()})
    servicer.go.set()
    assert await call.read() is grpc.aio.EOF


async def test_no_call_no_watching(world: Any, echo: SimpleNamespace, servicer: Any, until: Any) -> None:
    looked = 0
    client = await world.node("client")
    leases = client.link.leases

    async def counted(process_ids: Any = None) -> Any:
        nonlocal looked
        looked += 1
        return await leases(process_ids)

    client.link.leases = counted
    server = await world.node("server")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    await echo.EchoStub(client.channel()).Unary(echo.Text())
    await until(lambda: not client._watch._wanted.is_set(), "it has seen that there is no call")
    before = looked
    await asyncio.sleep(0.3)
    assert looked == before


async def test_a_transport_that_fails_says_so_and_lets_nobody_wait(
    world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    server, client = await world.node("server"), await world.node("client")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    call = echo.EchoStub(client.channel()).Unary(echo.Text(text="wait"))
    await servicer.started.wait()

    def receive(*received: Any) -> int:
        raise SystemError("not even an Exception that is expected")

    failing = asyncio.ensure_future(client.failed())
    client._receive = receive
    servicer.go.set()
    with pytest.raises(SystemError):
        await asyncio.wait_for(failing, LIMIT)
    assert (await error_of(call)).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_process_that_has_failed_says_nothing_more_to_its_callers(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """To them it has died, and a call may be the reason. It does not say that it was stopped."""
    call = pair.stub.Unary(echo.Text(text="wait"))
    await servicer.started.wait()
    pair.server.fail(ZeroDivisionError("as no code should"))
    servicer.go.set()
    later = pair.stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    await until(lambda: queued(world), "the call is at its door")
    await asyncio.sleep(0.1)
    assert not call.done()
    assert (servicer.calls, await world.length(door_of("contract.Echo"))) == (1, 1), "and takes no more calls"
    with pytest.raises(ZeroDivisionError):
        await pair.server.failed()
    await pair.server.link.close(goodbye=True)
    error = await error_of(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert dict(tuple(error.trailing_metadata() or ())) == {LOST: pair.server.id}
    later.cancel()


async def test_a_server_that_takes_no_more_calls_is_the_end_of_its_process(
    world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    node = await world.node("server")

    async def take(*asked: Any) -> Any:
        raise ZeroDivisionError

    node.link.take = take
    await world.serve(node, servicer, echo.add_EchoServicer_to_server)
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(node.failed(), LIMIT)


async def test_the_bus_s_clock_is_known_although_replies_wait(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await world.node("server")
    before = node.link.clock()
    assert abs(before - time.time()) < 1
    if hasattr(node.link, "_told"):
        asked = asyncio.get_running_loop().time() - 2
        now = node.link.clock()
        node.link._told((str(int(now - 2)).encode(), b"0"), asked)  # its reply has waited for two seconds
        assert abs(node.link.clock() - time.time()) < 1
