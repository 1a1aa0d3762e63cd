"""Entries of a size that nobody of ours writes, and more than can be held at once."""

import asyncio
import secrets
from types import SimpleNamespace
from typing import Any

import pytest

from proto.rpc import bounded_reader, bus, memory_bus, redis_entries
from proto.rpc import outbox as outbox_module
from proto.rpc.bus import door_of, inbox_of
from proto.rpc.call import MAX_MESSAGE_BYTES
from proto.rpc.outbox import Outbox
from proto.wire_pb2 import Kind
from tests.contract.conftest import LIMIT

DOOR = door_of("contract.Echo")
LARGEST = 2**20
HUGE = LARGEST + 1


@pytest.fixture
async def pair(world: Any, echo: SimpleNamespace, servicer: Any) -> SimpleNamespace:
    server = await world.node("server")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    client = await world.node("client")
    return SimpleNamespace(server=server, client=client, stub=echo.EchoStub(client.channel()))


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower limit, so that a test need not write so much."""
    for module in (bus, bounded_reader, memory_bus, redis_entries):
        monkeypatch.setattr(module, "MAX_ENTRY_BYTES", LARGEST)


@pytest.fixture
def little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a megabyte is held."""
    monkeypatch.setattr(bounded_reader, "MAX_HELD", 2**20)


async def test_an_entry_that_is_too_large_is_a_dead_letter_and_the_next_one_is_read(
    world: Any, pair: SimpleNamespace, echo: SimpleNamespace, until: Any, low_limit: None
) -> None:
    running = pair.stub.Chat()
    await running.write(echo.Text(text="a"))
    assert (await running.read()).text == "a"
    where = [DOOR, inbox_of(pair.server.id), inbox_of(pair.client.id)]
    for stream in where:
        await world.add(stream, {b"e": b"\x0a" * HUGE})

    async def buried() -> bool:
        letters = await world.dead_letters()
        return all(
            any(one.startswith(stream) and f"{HUGE} bytes" in one for one in letters) for stream in where
        )

    await until(buried, "each has its letter")
    await running.write(echo.Text(text="b"))
    async with asyncio.timeout(LIMIT):
        assert (await running.read()).text == "b", "a call that was there before goes on"
        assert (await pair.stub.Unary(echo.Text(text="x"))).text == "x"
    running.cancel()
    await until(lambda: gone(world), "the door is empty")


async def gone(world: Any) -> bool:
    return await world.length(DOOR) == 0


async def test_an_entry_that_is_too_large_is_taken_over_from_a_dead_process(
    world: Any, echo: SimpleNamespace, servicer: Any, until: Any, low_limit: None
) -> None:
    dead = await world.replica("server-dead", DOOR)
    await world.add(DOOR, {b"e": b"\x0a" * HUGE})
    taken = await dead.take(DOOR, 1)
    assert [(one.payload, one.size) for one in taken] == [(None, HUGE)]
    await dead.close(goodbye=False)
    await world.drop_lease("server-dead")
    await world.serve(await world.node("server"), servicer, echo.add_EchoServicer_to_server)
    await until(lambda: gone(world), "it is settled")
    assert any(f"{HUGE} bytes" in letter for letter in await world.dead_letters())


async def test_a_lease_that_is_too_large_stops_nobody(
    world: Any, pair: SimpleNamespace, echo: SimpleNamespace, low_limit: None
) -> None:
    await world.set_lease("hostile-1", b"[" * HUGE)
    assert {lease.process_id for lease in await pair.client.leases()} == {pair.client.id, pair.server.id}
    assert (await pair.stub.Unary(echo.Text(text="x"))).text == "x"


async def test_an_entry_of_very_many_fields_is_a_dead_letter(
    world: Any, pair: SimpleNamespace, echo: SimpleNamespace, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_reader, "MAX_ELEMENTS", 1000)
    many = {b"%d" % number: b"" for number in range(50_000)}
    for stream in (DOOR, inbox_of(pair.client.id)):
        await world.add(stream, many)

    async def buried() -> bool:
        return len(await world.dead_letters()) == 2

    await until(buried, "each has its letter")
    assert (await pair.stub.Unary(echo.Text(text="x"))).text == "x"


async def test_more_than_can_be_held_at_once_is_read_in_turns(
    world: Any, echo: SimpleNamespace, servicer: Any, little_at_once: None
) -> None:
    """Calls that wait at the door, and answers that wait in the inbox."""
    client = await world.node("client")
    stub, data = echo.EchoStub(client.channel()), secrets.token_bytes(300_000)
    calls = [stub.Unary(echo.Text(text=str(one), data=data), wait_for_ready=True) for one in range(8)]
    await client.outbox.empty()
    server = await world.node("server")
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    async with asyncio.timeout(LIMIT):
        answers = [await call for call in calls]
    assert [one.text for one in answers] == [str(one) for one in range(8)]
    assert all(one.data == data for one in answers)
    assert await world.dead_letters() == []
    assert servicer.calls == 8


async def test_no_entry_of_ours_is_too_large(
    world: Any, pair: SimpleNamespace, echo: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many calls that each have a message of the largest size in the same turn; and a call that opens so."""
    sizes: list[int] = []
    collect = Outbox._collect

    def collected(outbox: Outbox) -> Any:
        openers, batch = collect(outbox)
        sizes.extend(len(payload) for _, payload in (*batch.opens, *batch.entries))
        return openers, batch

    monkeypatch.setattr(Outbox, "_collect", collected)
    data = bytes(MAX_MESSAGE_BYTES - 100)
    calls = [pair.stub.Chat() for _ in range(6)]
    for call in calls:
        await call.write(echo.Text(text="a"))
        assert (await call.read()).text == "a"
    await asyncio.gather(*(call.write(echo.Text(data=data)) for call in calls))
    assert [len((await call.read()).data) for call in calls] == [len(data)] * 6
    for call in calls:
        call.cancel()
    collecting = pair.stub.Collect(echo.Text(text=str(one), data=data) for one in range(5))
    async with asyncio.timeout(LIMIT):
        assert (await collecting).text == "0 1 2 3 4"
    assert 2 * MAX_MESSAGE_BYTES >= max(sizes) > MAX_MESSAGE_BYTES - 200
    await pair.client.outbox.empty()


def test_frames_without_messages_are_divided_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MAX_ENTRY_FRAMES", 5000)
    outbox = Outbox(SimpleNamespace(), "a-1", lambda error: None)  # type: ignore[arg-type]
    for number in range(20_000):
        outbox.request("b-1" if number % 2 else "c-1", number, 1, Kind.HALF_CLOSE)
    batches = []
    while outbox._has_work.is_set():
        outbox._has_work.clear()
        batches.append(outbox._collect()[1].entries)
    assert max(len(payload) for entries in batches for _, payload in entries) < 5000 * 16
    assert len(batches) >= 4
    assert all(dict(entries).keys() == {"b-1", "c-1"} for entries in batches), "one for each inbox at a time"
