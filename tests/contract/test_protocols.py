"""Processes of two versions of the protocol beside each other, and those that do not say theirs."""

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError

from proto.rpc import Lease, Node, Resumption
from proto.rpc import lease as lease_module
from proto.rpc.bus import door_of
from proto.rpc.client_call import ClientCall
from proto.rpc.protocol import FIRST, PROTOCOL
from proto.wire_pb2 import Entry, Kind
from tests.contract.conftest import LIMIT, make_servicer

OTHER = PROTOCOL + 1
DOOR, OTHER_DOOR = door_of("contract.Echo"), door_of("contract.Echo", protocol=OTHER)


async def error_of(call: Any) -> AioRpcError:
    with pytest.raises(AioRpcError) as caught:
        async with asyncio.timeout(LIMIT):
            await call
    return caught.value


async def serving(world: Any, echo: SimpleNamespace, protocol: int) -> Any:
    """A server of this version, and what happens to it."""
    servicer = make_servicer(echo)
    node, faults = await world.faulty_node("server", protocol=protocol)
    server = await world.serve(node, servicer, echo.add_EchoServicer_to_server)
    return SimpleNamespace(node=node, faults=faults, servicer=servicer, server=server)


async def calling(world: Any, echo: SimpleNamespace, protocol: int) -> Any:
    return echo.EchoStub((await world.node("client", protocol=protocol)).channel())


def test_doors_of_the_first_version_are_named_as_they_were() -> None:
    assert door_of("quire.Worker", "m", FIRST) == "calls:Worker:m"
    assert door_of("quire.Worker", "m", 2) == "calls:Worker:m#2"


async def test_each_version_is_served_by_its_own(world: Any, echo: SimpleNamespace) -> None:
    ours, theirs = await serving(world, echo, PROTOCOL), await serving(world, echo, OTHER)
    for protocol, own, other in ((PROTOCOL, ours, theirs), (OTHER, theirs, ours)):
        stub, before = await calling(world, echo, protocol), other.servicer.calls
        answers = await asyncio.gather(*(stub.Unary(echo.Text(text=str(one))) for one in range(20)))
        assert [one.text for one in answers] == [str(one) for one in range(20)]
        assert other.servicer.calls == before
        assert own.servicer.calls == 20


async def test_a_call_whose_server_dies_is_not_resumed_with_another_version(
    world: Any, echo: SimpleNamespace
) -> None:
    ours, theirs = await serving(world, echo, PROTOCOL), await serving(world, echo, OTHER)
    stub = await calling(world, echo, PROTOCOL)
    call = stub.Stream(echo.Text(text="wait", count=3))
    assert [(await call.read()).count for _ in range(3)] == [0, 1, 2]
    await world.die(ours.node, ours.faults)
    assert (await error_of(call.read())).code() is grpc.StatusCode.UNAVAILABLE
    # The next try waits at the door for a server that reads it as it is meant.
    again = stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    await asyncio.sleep(0.3)
    assert theirs.servicer.calls == 0
    assert not again.done()
    error = await error_of(stub.Unary(echo.Text(text="x")))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "no process serves" in (error.details() or "")
    successor = await serving(world, echo, PROTOCOL)
    async with asyncio.timeout(LIMIT):
        assert (await again).text == "x"
    assert (theirs.servicer.calls, successor.servicer.calls) == (0, 1)
    ours.faults.reconnect()


async def test_calls_are_not_taken_over_from_a_dead_process_of_another_version(
    world: Any, echo: SimpleNamespace
) -> None:
    dead = await world.replica("server-dead", DOOR)
    call = (await calling(world, echo, PROTOCOL)).Unary(echo.Text(text="x"), wait_for_ready=True)
    assert len(await dead.take(DOOR, 1)) == 1
    await dead.close(goodbye=False)
    await world.drop_lease("server-dead")
    theirs = await serving(world, echo, OTHER)
    await asyncio.sleep(0.3)
    assert theirs.servicer.calls == 0
    await serving(world, echo, PROTOCOL)
    async with asyncio.timeout(LIMIT):
        assert (await call).text == "x"
    assert theirs.servicer.calls == 0


async def test_a_call_at_the_door_of_another_version_is_refused(
    world: Any, echo: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a process that does not know doors of versions."""
    ours = await serving(world, echo, PROTOCOL)
    stub = await calling(world, echo, OTHER)
    monkeypatch.setattr(stub.Unary, "_door", DOOR)
    for _ in range(2):
        error = await error_of(stub.Unary(echo.Text(text="x"), wait_for_ready=True))
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert f"protocol {OTHER}" in (error.details() or "")
    assert ours.servicer.calls == 0
    assert f"speaks protocol {OTHER}, and is refused at {DOOR}" in caplog.text
    assert (await (await calling(world, echo, PROTOCOL)).Unary(echo.Text(text="y"))).text == "y"
    assert await world.dead_letters() == []
    with pytest.raises(AioRpcError) as refused:
        Resumption().retry_or_raise(error)
    assert refused.value is error, "it is not tried again"


async def test_who_does_not_say_a_version_speaks_the_first(
    world: Any, echo: SimpleNamespace, until: Any
) -> None:
    ours = await serving(world, echo, FIRST)
    entry = Entry(sender="client-old", epoch=1)
    entry.requests.add(call=1, seq=1, kind=Kind.OPEN).open.method = "/contract.Echo/Unary"
    entry.requests.add(call=1, seq=2, kind=Kind.MESSAGE)
    entry.requests.add(call=1, seq=3, kind=Kind.HALF_CLOSE)
    await world.add(door_of("contract.Echo", protocol=FIRST), {b"e": entry.SerializeToString()})
    await until(lambda: ours.servicer.calls == 1, "it is served")
    old = json.dumps({"service": "worker", "epoch": 1, "info": {}}).encode()
    lease = Lease.decode("worker-old", old)
    assert lease is not None
    assert lease.protocol == FIRST


async def test_leases_are_those_of_ones_own_version(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    ours, theirs = await world.node("a", protocol=FIRST), await world.node("b", protocol=OTHER)
    await world.set_lease("c-1", b'{"service": "c", "epoch": 1, "info": {}}')
    for _ in range(3):
        assert [lease.process_id for lease in await ours.leases()] == [ours.id, "c-1"]
    assert [lease.process_id for lease in await theirs.leases()] == [theirs.id]
    everybody = {lease.process_id: lease.protocol for lease in await ours.leases(any_protocol=True)}
    assert everybody == {ours.id: FIRST, theirs.id: OTHER, "c-1": FIRST}
    said = [
        one.getMessage()
        for one in caplog.records
        if f"{theirs.id!r} speaks protocol {OTHER}" in one.getMessage()
    ]
    assert len(said) == 1


async def test_every_process_is_replaced_under_load_with_the_version_before_it_beside_it(
    world: Any, echo: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, repeated or changed. The version before does not say its version."""
    encode = lease_module.Lease.encode

    def encoded(lease: Lease) -> bytes:
        fields = json.loads(encode(lease))
        if lease.process_id.startswith("older"):
            del fields["protocol"]
        return json.dumps(fields).encode()

    monkeypatch.setattr(lease_module.Lease, "encode", encoded)
    opened = ClientCall.open

    def opening(call: Any, *how: Any) -> None:
        opened(call, *how)
        if call._calls.service == "older":
            call._opening.requests[0].open.ClearField("protocol")

    monkeypatch.setattr(ClientCall, "open", opening)
    wanted = [str(one) for one in range(40)]

    async def listen(node: Node) -> list[str]:
        """One answer of 40 parts, made again from where it was, as the tokenizer does."""
        stub, got, resumption = echo.EchoStub(node.channel()), list[str](), Resumption()
        while len(got) < len(wanted):
            call = stub.Chat(wait_for_ready=True, metadata=resumption.metadata())
            try:
                while len(got) < len(wanted):
                    await call.write(echo.Text(text=wanted[len(got)]))
                    part = await call.read()
                    got.append(part.text)
                    resumption.progressed()
                    await asyncio.sleep(0.01)
            except (AioRpcError, asyncio.InvalidStateError) as error:
                if isinstance(error, AioRpcError):
                    resumption.retry_or_raise(error)
            finally:
                call.cancel()
        return got

    async def server(kind: str) -> Any:
        node = await world.node(kind, protocol=FIRST)
        return await world.serve(node, make_servicer(echo), echo.add_EchoServicer_to_server)

    kinds = ("older", "newer")
    clients = [await world.node(kind, protocol=FIRST) for kind in kinds]
    running = await server("older")
    answers = [asyncio.ensure_future(listen(client)) for client in clients for _ in range(4)]
    for turn in range(5):
        await asyncio.sleep(0.1)
        successor = await server(kinds[(turn + 1) % 2])
        await running.stop(0)
        running = successor
    async with asyncio.timeout(LIMIT):
        assert await asyncio.gather(*answers) == [wanted] * len(answers)
