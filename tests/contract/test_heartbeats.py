"""What only the bus has: frames that are lost with no frame behind them that would show it."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError

from proto.rpc import Resumption
from proto.rpc.bus import Batch, door_of
from proto.rpc.resp import RedisReplyError
from proto.rpc.resume import ATTEMPT, LOST
from proto.wire_pb2 import Entry, Kind
from tests.contract.conftest import LIMIT
from tests.contract.test_economy import published

QUIET = 0.1
"""Seconds without a frame after which a process asks."""


def once(kind: Kind, seq: int = 0) -> Callable[[str, bytes], bool]:
    """Drops the first entry that holds a frame of a kind, and with a number if one is given."""
    lost: list[bytes] = []

    def drop(_: str, payload: bytes) -> bool:
        entry = Entry.FromString(payload)
        frames = [*entry.requests, *entry.responses]
        hit = not lost and any(frame.kind == kind and seq in (0, frame.seq) for frame in frames)
        if hit:
            lost.append(payload)
        return hit

    drop.lost = lost  # type: ignore[attr-defined]
    return drop


async def error_of(work: Any) -> AioRpcError:
    with pytest.raises(AioRpcError) as caught:
        async with asyncio.timeout(LIMIT):
            await work
    # No process was lost. A call that has gone from its door counts as if one had been.
    assert dict(tuple(caught.value.trailing_metadata() or ())).get(LOST) in (None, door_of("contract.Echo"))
    return caught.value


async def unavailable(work: Any) -> None:
    assert (await error_of(work)).code() is grpc.StatusCode.UNAVAILABLE


@pytest.fixture
async def pair(world: Any, echo: SimpleNamespace, servicer: Any) -> SimpleNamespace:
    """A client and a server, each with a link that loses what a test says."""
    server, server_faults = await world.faulty_node("server", quiet_seconds=QUIET)
    client, client_faults = await world.faulty_node("client", quiet_seconds=QUIET)
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    stub = echo.EchoStub(client.channel())
    return SimpleNamespace(
        server=server, client=client, server_faults=server_faults, client_faults=client_faults, stub=stub
    )


# --- each kind of frame ---


@pytest.mark.parametrize("wait", [False, True], ids=["fail fast", "wait for ready"])
async def test_a_lost_opening(
    pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any, wait: bool
) -> None:
    pair.client_faults.drop_opening = once(Kind.OPEN)
    await unavailable(pair.stub.Unary(echo.Text(text="x"), wait_for_ready=wait))
    assert servicer.calls == 0
    assert (await pair.stub.Unary(echo.Text(text="x"))).text == "x"


async def test_a_lost_opening_whose_id_is_not_known(pair: SimpleNamespace, echo: SimpleNamespace) -> None:
    pair.client_faults.drop_opening = once(Kind.OPEN)
    pair.client_faults.lose_answers = 1
    await unavailable(pair.stub.Unary(echo.Text(text="x"), wait_for_ready=True))
    assert (await pair.stub.Unary(echo.Text(text="x"))).text == "x"


async def test_an_opening_that_nobody_can_read(
    pair: SimpleNamespace, world: Any, echo: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = pair.stub.Unary(echo.Text(text="x"))
    call._core._opening.requests[0].open.method = ""
    await unavailable(call)
    assert len(await world.dead_letters()) == 1


async def test_a_lost_acceptance(pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any) -> None:
    pair.server_faults.drop = once(Kind.ACCEPT)
    call = pair.stub.Unary(echo.Text(text="wait"), wait_for_ready=True)
    await unavailable(call)
    async with asyncio.timeout(LIMIT):
        await servicer.cancelled.wait()
    assert servicer.calls == 1


async def test_a_lost_answer(pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any) -> None:
    """Acceptance, message and status in one entry."""
    pair.server_faults.drop = once(Kind.STATUS)
    await unavailable(pair.stub.Unary(echo.Text(text="x")))
    assert servicer.calls == 1, "it was served, and nobody serves it again"


async def test_a_lost_response(pair: SimpleNamespace, echo: SimpleNamespace) -> None:
    call = pair.stub.Chat()
    await call.write(echo.Text(text="a"))
    assert (await call.read()).text == "a"
    pair.server_faults.drop = once(Kind.MESSAGE, seq=3)
    await call.write(echo.Text(text="b"))
    await unavailable(call.read())


async def test_a_lost_request(pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any) -> None:
    call = pair.stub.Chat()
    await call.write(echo.Text(text="a"))
    assert (await call.read()).text == "a"
    pair.client_faults.drop = once(Kind.MESSAGE, seq=3)
    await call.write(echo.Text(text="b"))
    await unavailable(call.read())
    assert servicer.seen == ["a"]


async def test_a_lost_end_of_the_requests(pair: SimpleNamespace, echo: SimpleNamespace) -> None:
    call = pair.stub.Chat()
    await call.write(echo.Text(text="a"))
    assert (await call.read()).text == "a"
    pair.client_faults.drop = once(Kind.HALF_CLOSE)
    await call.done_writing()
    await unavailable(call.read())


async def test_a_lost_status(pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any) -> None:
    call = pair.stub.Stream(echo.Text(text="wait", count=1))
    assert (await call.read()).count == 0
    pair.server_faults.drop = once(Kind.STATUS)
    servicer.go.set()
    await unavailable(call.read())


async def test_a_lost_cancellation(pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any) -> None:
    call = pair.stub.Unary(echo.Text(text="wait"))
    await call.wait_for_connection()
    pair.client_faults.drop = once(Kind.CANCEL)
    call.cancel()
    async with asyncio.timeout(LIMIT):
        await servicer.cancelled.wait()
    assert call.cancelled()
    assert servicer.calls == 1


@pytest.mark.parametrize("kind", [Kind.PROBE, Kind.GONE])
async def test_a_lost_question_or_answer_is_followed_by_another(
    pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any, kind: Kind
) -> None:
    call = pair.stub.Stream(echo.Text(text="wait", count=1))
    assert (await call.read()).count == 0
    status, answer = once(Kind.STATUS), once(kind)
    pair.server_faults.drop = lambda *entry: status(*entry) or answer(*entry)
    pair.client_faults.drop = once(kind)
    servicer.go.set()
    await unavailable(call.read())


# --- around it ---


async def test_a_caller_that_resumes_gets_its_answer(pair: SimpleNamespace, echo: SimpleNamespace) -> None:
    pair.client_faults.drop_opening = once(Kind.OPEN)
    pair.server_faults.drop = once(Kind.ACCEPT)
    resumption, tries = Resumption(), 0
    while True:
        tries += 1
        try:
            async with asyncio.timeout(LIMIT):
                assert (await pair.stub.Unary(echo.Text(text="x"), wait_for_ready=True)).text == "x"
            break
        except AioRpcError as error:
            resumption.retry_or_raise(error)
    assert tries == 3
    assert resumption.metadata() == ((ATTEMPT, "2"),), "twice it had gone from its door without ACCEPT"


async def test_quiet_calls_go_on_and_cost_one_entry_each_way(
    pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    calls = [pair.stub.Stream(echo.Text(text="wait", count=1)) for _ in range(50)]
    for call in calls:
        await call.read()
    began = time.monotonic()
    asked, answered = published(pair.client), published(pair.server)
    for batches in (asked, answered):
        await until(lambda batches=batches: len(entries(batches)) >= 6, "it has asked again and again")
        assert set(entries(batches)) == {1}, "one question for all calls"
    # A question may have been due, and another on its way, before these were counted.
    assert len(entries(answered)) <= 1 + len(entries(asked))
    assert len(entries(asked)) <= 2 + (time.monotonic() - began) / QUIET
    servicer.go.set()
    assert [await call.read() for call in calls] == [grpc.aio.EOF] * 50


def entries(batches: list[Batch]) -> list[int]:
    """Entries of each batch that has any."""
    return [len(batch.entries) for batch in batches if batch.entries]


async def test_a_call_that_waits_at_its_door_waits_on(
    world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    client = await world.node("client", quiet_seconds=QUIET)
    call = echo.EchoStub(client.channel()).Unary(echo.Text(text="x"), wait_for_ready=True)
    await asyncio.sleep(5 * QUIET)
    assert not call.done()
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    assert (await call).text == "x"


async def test_whoever_talks_is_not_asked(
    world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    client = await world.node("client")
    asked = published(client)

    def kinds() -> list[int]:
        return [
            frame.kind
            for batch in asked
            for _, payload in batch.entries
            for frame in Entry.FromString(payload).requests
        ]

    call = echo.EchoStub(client.channel()).Chat()
    # From then on it asks only when the test lets it.
    await until(lambda: client._watch._probe_at > 0, "it has asked of its own accord")
    for _ in range(10):
        await call.write(echo.Text(text="x"))
        await call.read()
        await client.probe()
    await client.outbox.empty()
    assert set(kinds()) == {Kind.MESSAGE}
    await client.probe()
    await client.outbox.empty()
    assert kinds().count(Kind.PROBE) == 1, "it has been quiet since it was asked before"
    call.cancel()


async def test_frames_that_come_twice_are_no_gap(
    pair: SimpleNamespace, echo: SimpleNamespace, servicer: Any
) -> None:
    pair.server_faults.repeat = pair.client_faults.repeat = 2
    call = pair.stub.Stream(echo.Text(text="wait", count=3))
    assert [(await call.read()).count for _ in range(3)] == [0, 1, 2]
    await asyncio.sleep(4 * QUIET)
    servicer.go.set()
    assert await call.read() is grpc.aio.EOF


async def test_a_user_who_may_not_look_at_the_door_waits_as_before(
    world: Any, echo: SimpleNamespace, servicer: Any
) -> None:
    if world.redis is None:
        pytest.skip("memory has no users")
    client = await world.node("client", quiet_seconds=QUIET)
    execute = client.link._control.execute

    async def refused(*commands: Any, **options: Any) -> Any:
        if commands[0][0] == "XRANGE":
            raise RedisReplyError("NOPERM User client has no permissions to run the 'xrange' command")
        return await execute(*commands, **options)

    client.link._control.execute = refused
    call = echo.EchoStub(client.channel()).Unary(echo.Text(text="x"), wait_for_ready=True)
    await asyncio.sleep(4 * QUIET)
    assert not client._keeper.is_away
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    assert (await call).text == "x"
