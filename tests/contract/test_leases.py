"""What only the bus has: processes that watch over each other."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError

from proto.rpc.resume import LOST
from proto.wire_pb2 import Entry, Kind


async def error_of(call: Any) -> AioRpcError:
    with pytest.raises(AioRpcError) as caught:
        async with asyncio.timeout(10):
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


async def test_a_lease_is_renewed_for_as_long_as_its_process_lives(world: Any) -> None:
    node = await world.node()
    await asyncio.sleep(2 * 0.6)
    assert [lease.process_id for lease in await node.leases()] == [node.id]
    assert node.epoch == 1


async def test_a_call_ends_when_its_server_dies(pair: SimpleNamespace, echo: SimpleNamespace) -> None:
    call = pair.stub.Stream(echo.Text(text="wait", count=3))
    assert [(await call.read()).count for _ in range(3)] == [0, 1, 2]
    pair.server_faults.disconnect()
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
    await world.drop_lease(pair.server)
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
    pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any
) -> None:
    call = pair.stub.Unary(echo.Text(text="wait"))
    await servicer.started.wait()
    pair.client_faults.disconnect()
    async with asyncio.timeout(5):
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
    async with asyncio.timeout(5):
        await servicer.cancelled.wait()


async def test_a_process_that_lost_its_lease_drops_its_calls(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    call = pair.stub.Unary(echo.Text(text="wait"))
    await servicer.started.wait()
    await world.drop_lease(pair.server)
    async with asyncio.timeout(5):
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
    await world.drop_lease(pair.client)
    assert (await error_of(call)).code() is grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(5):
        await servicer.cancelled.wait()
    assert (await pair.stub.Unary(echo.Text(text="again"))).text == "again"


async def test_a_process_that_was_cut_off_fences_itself(
    pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    pair.server_faults.disconnect()
    await until(lambda: absent(pair.client, pair.server), "the lease runs out")
    pair.server_faults.reconnect()
    await until(lambda: pair.server.epoch == 2, "a new epoch")
    assert (await pair.stub.Unary(echo.Text(text="again"), wait_for_ready=True)).text == "again"


async def test_calls_wait_until_a_lease_that_ran_out_is_taken_anew(
    pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """As in a process that was stopped and finds calls at its door first: it would drop them again."""
    renewing = asyncio.Event()
    renew = pair.server.link.renew_lease

    async def late(*lease: Any) -> Any:
        await renewing.wait()
        return await renew(*lease)

    pair.server.link.renew_lease = late
    await until(lambda: absent(pair.client, pair.server), "the lease runs out")
    call = pair.stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    await asyncio.sleep(0.1)
    assert not call.done()
    renewing.set()
    assert (await call).text == "x"
    assert (pair.server.epoch, servicer.calls) == (2, 1)


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
    async with asyncio.timeout(10):
        assert (await pair.stub.Unary(echo.Text(text="x"), wait_for_ready=True)).text == "x"


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
    await world.drop_lease(pair.server)
    await until(lambda: pair.server.epoch == 2, "a new epoch")
    call = pair.stub.Stream(echo.Text(text="wait", count=1), wait_for_ready=True)
    assert (await call.read()).count == 0
    stale = Entry(sender=pair.server.id, epoch=1)
    for number in range(1, 10):
        stale.responses.add(call=number, seq=3, kind=Kind.STATUS).status.code = 13
    await world.add(f"inbox:{pair.client.id}", {b"e": stale.SerializeToString()})
    servicer.go.set()
    assert await call.read() is grpc.aio.EOF


async def test_no_call_no_watching(world: Any, echo: SimpleNamespace, servicer: Any) -> None:
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
    await asyncio.sleep(0.5)
    before = looked
    await asyncio.sleep(0.6)
    assert looked == before
