"""What only the bus has: frames late, twice or never, readers that do not keep up, a Redis that is away."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import redis.asyncio
from grpc.aio import AioRpcError

from ops.launcher.redis_server import RedisServer
from proto.rpc import Node, RedisBus, redis_bus
from proto.wire_pb2 import Entry, Kind
from tests.contract.conftest import LEASE, LIMIT


def with_message(seq: int) -> Any:
    """Drops entries that hold the message with a sequence number."""

    def drop(process_id: str, payload: bytes) -> bool:
        entry = Entry.FromString(payload)
        frames = [*entry.requests, *entry.responses]
        return any(frame.kind == Kind.MESSAGE and frame.seq == seq for frame in frames)

    return drop


async def test_lag(pair: SimpleNamespace, echo: SimpleNamespace) -> None:
    pair.server_faults.lag = pair.client_faults.lag = 0.02
    assert (await pair.stub.Unary(echo.Text(text="x"))).text == "x"
    messages = [message.count async for message in pair.stub.Stream(echo.Text(count=20))]
    assert messages == list(range(20))


async def test_repeated_frames_are_harmless(
    pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any
) -> None:
    pair.server_faults.repeat = pair.client_faults.repeat = 2
    call = pair.stub.Chat()
    for word in ("a", "b", "c"):
        await call.write(echo.Text(text=word))
        assert (await call.read()).text == word
    await call.done_writing()
    assert (await call.read()).text == "bye"
    assert await call.read() is grpc.aio.EOF
    assert servicer.seen == ["a", "b", "c"]
    assert servicer.calls == 1, "the call came to the door twice and ran once"


async def test_a_call_that_came_to_two_servers_is_kept_by_one(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    pair.client_faults.repeat = 2
    call = pair.stub.Unary(echo.Text(text="wait"))
    await servicer.started.wait()
    pair.client_faults.repeat = 1
    # The first server has both; a second one gets what a repetition would give it.
    second = await world.node("server")
    entry = Entry(sender=pair.client.id, epoch=1)
    entry.responses.add(call=1, seq=1, kind=Kind.ACCEPT)
    other = await world.bus().connect(second.id)
    await call.wait_for_connection()
    stray = Entry(sender=second.id, epoch=1)
    stray.responses.add(call=call._core.number, seq=1, kind=Kind.ACCEPT)
    got: list[Any] = []
    dispatch = second._dispatch
    second._dispatch = lambda arrived: (got.extend(arrived.requests), dispatch(arrived))
    await world.add(f"inbox:{pair.client.id}", {b"e": stray.SerializeToString()})
    await until(lambda: got, "an answer")
    assert [frame.kind for frame in got] == [Kind.CANCEL]
    assert not call.done()
    servicer.go.set()
    assert (await call).text == "wait"
    await other.close(goodbye=False)


@pytest.mark.parametrize("losses", [1, 3])
async def test_a_lost_answer_opens_no_call_twice(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, servicer: Any, losses: int
) -> None:
    second = await world.node("server")
    await world.serve(second, servicer, echo.add_EchoServicer_to_server)
    pair.client_faults.lose_answers = losses
    assert (await pair.stub.Unary(echo.Text(text="x"), wait_for_ready=True)).text == "x"
    pair.server_faults.lose_answers = losses
    for _ in range(3):
        call = pair.stub.Stream(echo.Text(count=5), wait_for_ready=True)
        assert [message.count async for message in call] == list(range(5))
    assert servicer.calls == 4


async def test_a_gap_in_the_responses(pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any) -> None:
    call = pair.stub.Chat()
    await call.write(echo.Text(text="a"))
    assert (await call.read()).text == "a"
    pair.server_faults.drop = with_message(3)  # 1 is ACCEPT, 2 the message before
    await call.write(echo.Text(text="b"))
    while "b" not in servicer.seen:
        await asyncio.sleep(0.01)
    await pair.server.outbox.empty()
    await call.write(echo.Text(text="c"))
    with pytest.raises(AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_gap_in_the_requests(pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any) -> None:
    call = pair.stub.Chat()
    await call.write(echo.Text(text="a"))
    assert (await call.read()).text == "a"
    pair.client_faults.drop = with_message(3)
    await call.write(echo.Text(text="b"))
    await pair.client.outbox.empty()
    await call.write(echo.Text(text="c"))
    with pytest.raises(AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert servicer.seen == ["a"]


async def test_a_client_that_does_not_keep_up(pair: SimpleNamespace, echo: SimpleNamespace) -> None:
    call = pair.stub.Stream(echo.Text(count=100_000))
    beside = pair.stub.Stream(echo.Text(count=5000))
    assert len([message async for message in beside]) == 5000, "others notice nothing"
    assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(AioRpcError) as caught:
        async for _ in call:
            pass
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_handler_that_does_not_keep_up(
    pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any
) -> None:
    async def requests() -> AsyncIterator[Any]:
        yield echo.Text(text="wait")
        for _ in range(100_000):
            yield echo.Text()

    call = pair.stub.Collect(requests())
    with pytest.raises(AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    async with asyncio.timeout(LIMIT):
        await servicer.cancelled.wait()


async def test_a_disconnection_in_the_middle_of_a_stream(
    pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any
) -> None:
    seen = []

    async def disturb() -> None:
        for _ in range(5):
            for faults in (pair.server_faults, pair.client_faults):
                faults.disconnect()
                await asyncio.sleep(0.05)
                faults.reconnect()
                await asyncio.sleep(0.05)

    disturbance = asyncio.ensure_future(disturb())
    call = pair.stub.Chat()
    for index in range(60):
        await call.write(echo.Text(count=index))
        seen.append((await call.read()).count)
        await asyncio.sleep(0.01)
    await disturbance
    await call.done_writing()
    assert (await call.read()).text == "bye"
    assert seen == list(range(60))
    assert servicer.calls == 1


async def test_fail_fast_while_the_bus_is_away(
    pair: SimpleNamespace, echo: SimpleNamespace, until: Any
) -> None:
    pair.client_faults.disconnect()
    await until(lambda: pair.client._keeper.is_away, "it is noticed")
    with pytest.raises(AioRpcError) as caught:
        await pair.stub.Unary(echo.Text())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    waiting = pair.stub.Unary(echo.Text(text="x"), wait_for_ready=True)
    pair.client_faults.reconnect()
    assert (await waiting).text == "x"


async def test_an_entry_that_is_deleted_before_it_is_read_is_not_waited_for(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.redis is None:
        pytest.skip("nothing is deleted in memory")
    monkeypatch.setattr(redis_bus, "BLOCK_SECONDS", 1)
    node = await world.node("client")

    async def deleted() -> str:
        return "9999999999999-0"

    node.link.tail = deleted  # type: ignore[method-assign]
    before = node._empty_reads
    async with asyncio.timeout(LIMIT):
        await node.caught_up()
    assert node._empty_reads == before + 2


# --- a Redis that dies ---


@pytest.fixture
def mortal_redis(tmp_path: Path) -> Any:
    with RedisServer(directory=tmp_path) as server:
        yield server


async def test_reconnecting_leaves_no_connections_behind(
    mortal_redis: RedisServer, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    """Several parts of a process find at the same time that their connection is lost."""
    watching = redis.asyncio.Redis.from_url(mortal_redis.url, socket_timeout=60)

    async with (
        Node(RedisBus(mortal_redis.url), "server", lease_seconds=LEASE) as server,
        Node(RedisBus(mortal_redis.url), "client", lease_seconds=LEASE) as client,
    ):
        lines = [line for one in (server, client) for line in (one.link._control, one.link._inbox)]

        async def connections() -> int:
            """How many there are, once every part has its own."""
            await until(lambda: all(line._open() for line in lines), "all are connected")
            return len(await watching.client_list()) - 1

        served = server.server()
        echo.add_EchoServicer_to_server(servicer, served)
        await served.start()
        stub = echo.EchoStub(client.channel())
        calls = [stub.Unary(echo.Text(text="wait")) for _ in range(3)]
        await servicer.started.wait()
        lines += server.link._doors.values()
        assert await connections() == len(lines)
        # Away for a moment, so that all want to connect before one has.
        await watching.pipeline().client_kill_filter(_type="normal", skipme=True).client_pause(400).execute()
        servicer.go.set()
        assert [(await call).text for call in calls] == ["wait"] * 3
        assert await connections() == len(lines)
    await watching.aclose()
