"""What the wire costs: entries, pipelines, wake-ups."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from proto.rpc import Node, redis_bus
from proto.rpc.bus import Batch
from tests.contract.conftest import make_servicer, until


def published(node: Node) -> list[Batch]:
    """The batches that a process publishes from now on."""
    batches: list[Batch] = []
    publish = node.link.publish

    async def noted(batch: Batch, again: bool = False) -> Any:
        batches.append(batch)
        return await publish(batch, again)

    node.link.publish = noted  # type: ignore[method-assign]
    return batches


async def test_a_quick_call_costs_one_pipeline_each_way(
    world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    server, client = await world.node("server"), await world.node("client")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    asked, answered = published(client), published(server)
    stub = echo.EchoStub(client.channel())
    for _ in range(3):
        await stub.Unary(echo.Text(text="x"))
    assert [len(batch.opens) for batch in asked] == [1, 1, 1]
    # ACCEPT, message and status in one entry, and the door's entry settled along with them.
    assert [(len(batch.entries), len(batch.settled)) for batch in answered] == [(1, 1)] * 3


async def test_requests_that_are_there_go_along_with_the_opening(
    world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    server, client = await world.node("server"), await world.node("client")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    asked = published(client)
    call = echo.EchoStub(client.channel()).Chat()
    await call.write(echo.Text(text="x"))
    assert (await call.read()).text == "x"
    assert [len(batch.entries) for batch in asked] == [0]
    await call.done_writing()
    assert (await call.read()).text == "bye"
    await call.code()


async def test_what_a_call_sets_in_motion_goes_along_with_its_acceptance(
    world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    """As in a scheduler: a request that has come wakes a task, which sends a plan to a worker."""
    client, server, worker = [await world.node(name) for name in ("client", "server", "worker")]
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    await world.serve(worker, make_servicer(echo), echo.add_EchoServicer_to_server, pool="worker")
    plans = echo.EchoStub(server.channel("worker")).Chat()
    await plans.wait_for_connection()

    async def plan() -> None:
        await servicer.started.wait()
        await plans.write(echo.Text(text="plan"))

    planning = asyncio.ensure_future(plan())
    await server.outbox.empty()
    sent = published(server)
    call = echo.EchoStub(client.channel()).Unary(echo.Text(text="wait"))
    assert (await plans.read()).text == "plan"
    await planning
    assert [dict(batch.entries).keys() for batch in sent] == [{client.id, worker.id}]
    servicer.go.set()
    await call
    plans.cancel()


async def test_an_answer_is_sent_before_more_is_asked_for(
    world: Any, echo: SimpleNamespace, servicer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = await world.node("server"), await world.node("client")
    done: list[str] = []

    def note(name: str) -> None:
        whole = getattr(server.link, name)

        async def noted(*arguments: Any) -> Any:
            done.append(name)
            return await whole(*arguments)

        monkeypatch.setattr(server.link, name, noted)

    for name in ("take", "read", "publish"):
        note(name)
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    await until(lambda: "take" in done, "it takes calls")
    done.clear()
    call = echo.EchoStub(client.channel()).Chat()
    for _ in range(3):
        await call.write(echo.Text(text="x"))
        await call.read()
    assert done[:5] == ["publish", "take", "publish", "read", "publish"]
    call.cancel()


async def test_who_serves_a_call_hears_of_it_before_its_caller(world: Any) -> None:
    """Redis answers last in, first out. Whoever is woken first has a core."""
    if world.redis is None:
        pytest.skip("about commands")
    link = await world.replica("server", "calls:Echo")
    async with world.redis.monitor() as monitor:
        await link.publish(Batch(1, opens=[("calls:Echo", b"x")], entries=[("server", b"y")]))
        streams: list[str] = []
        while f"{world.prefix}calls:Echo" not in streams:
            name, *arguments = (await monitor.next_command())["command"].split()
            if name.upper() == "XADD":
                streams.append(arguments[0])
    assert streams == [f"{world.prefix}inbox:server", f"{world.prefix}calls:Echo"]
    await link.close(goodbye=True)


async def test_what_many_calls_say_in_one_turn_is_one_entry(
    world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    server, client = await world.node("server"), await world.node("client")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    stub = echo.EchoStub(client.channel())
    calls = [stub.Unary(echo.Text(text="wait")) for _ in range(256)]
    while servicer.calls < 256:
        await asyncio.sleep(0.01)
    await server.outbox.empty()
    answered = published(server)
    servicer.go.set()
    await asyncio.gather(*calls)
    assert sum(len(batch.entries) for batch in answered) <= 2


async def test_an_idle_process_does_nothing_but_renew(
    world: Any, echo: SimpleNamespace, servicer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_bus, "BLOCK_SECONDS", 600)
    server = await world.node("server")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    reads = 0
    read = server.link.read

    async def noted(after: str) -> Any:
        nonlocal reads
        reads += 1
        return await read(after)

    batches = published(server)
    server.link.read = noted
    await asyncio.sleep(1.0)
    assert batches == []
    assert reads <= 1


async def test_a_process_may_call_itself(world: Any, echo: SimpleNamespace, servicer: Any) -> None:
    node = await world.node("both")
    await world.serve(node, servicer, echo.add_EchoServicer_to_server)
    stub = echo.EchoStub(node.channel())
    assert (await stub.Unary(echo.Text(text="x"))).text == "x"
    messages = [message.count async for message in stub.Stream(echo.Text(count=5))]
    assert messages == list(range(5))
