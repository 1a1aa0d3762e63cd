"""What a process may not write must not keep it from writing the rest."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from grpc.aio import AioRpcError

from ops.launcher.acl import OPERATOR, Credentials
from ops.launcher.redis_server import RedisServer
from proto.rpc import BusAway, Node, RedisBus
from proto.rpc.bus import Batch, door_of
from tests.contract.conftest import DEBIAN, LIMIT

USERS = Credentials()
STRANGER = ("nobody-1", b"to nobody")


ADMIN = "admin"


@pytest.fixture(scope="module", params=[None, *([Path(DEBIAN)] if DEBIAN else [])], ids=str)
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(
        request.param, users=f"{USERS.acl_file('quire:')}user {ADMIN} on nopass ~* &* +@all\n"
    ) as server:
        yield server


@pytest.fixture
async def operator(server: RedisServer) -> AsyncIterator[Any]:
    client = redis.asyncio.Redis.from_url(USERS.url(OPERATOR, server.address), socket_timeout=60)
    await client.delete("quire:inbox:gateway-1", "quire:calls:Scheduler:m")
    await client.xadd("quire:inbox:gateway-1", {b"e": b"first"})
    yield client
    await client.aclose()


@pytest.fixture
async def link(server: RedisServer, operator: Any) -> AsyncIterator[Any]:
    link = await RedisBus(USERS.url("tokenizer", server.address)).connect("tokenizer-1")
    await link.take_lease(b"{}", 5)
    yield link
    await link.close(goodbye=True)


def administrator(server: RedisServer) -> Any:
    """A client of Redis who may do everything."""
    return redis.asyncio.Redis.from_url(server.address, username=ADMIN, password="", socket_timeout=60)


async def inbox(operator: Any) -> list[bytes]:
    return [fields[b"e"] for _, fields in await operator.xrange("quire:inbox:gateway-1")][1:]


async def test_an_answer_to_nobody_is_dropped_and_the_others_are_sent(link: Any, operator: Any) -> None:
    """The sender of an entry may be any name, and answers go to the inbox of that name."""
    entries = [STRANGER, ("worker-1", b"not a neighbour"), ("gateway-1", b"a")]
    assert await link.publish(Batch(1, entries=entries)) == ()
    assert await inbox(operator) == [b"a"]
    assert not await operator.exists("quire:inbox:nobody-1", "quire:inbox:worker-1")


async def test_calls_go_out_beside_an_answer_to_nobody(link: Any, operator: Any) -> None:
    batch = Batch(2, opens=[("calls:Scheduler:m", b"call")], entries=[STRANGER, ("gateway-1", b"a")])
    (number,) = await link.publish(batch)
    found = await operator.xrange("quire:calls:Scheduler:m")
    assert [(one.decode(), fields[b"e"]) for one, fields in found] == [(number, b"call")]
    assert await inbox(operator) == [b"a"]
    assert await link.publish(batch, again=True) == ()
    assert await operator.xlen("quire:calls:Scheduler:m") == 1


async def test_a_full_redis_takes_an_accept_from_who_may_only_write_there(
    server: RedisServer, link: Any, operator: Any
) -> None:
    admin = administrator(server)
    await admin.config_set("maxmemory", 1)
    try:
        entries, settled = [STRANGER, ("gateway-1", b"a")], [("calls:Tokenizer:m", "1-1")]
        assert await link.publish(Batch(1, entries=entries, settled=settled)) == ()
    finally:
        await admin.config_set("maxmemory", 0)
        await admin.aclose()
    assert await inbox(operator) == [b"a"]


async def test_a_process_may_look_at_its_own_door_alone(link: Any, operator: Any) -> None:
    await operator.delete("quire:calls:Tokenizer:m")
    await link.join("calls:Tokenizer:m")
    await operator.xadd("quire:calls:Tokenizer:m", {b"e": b"call"})
    assert (await link.look("calls:Tokenizer:m"))[:2] == (1, 0)
    with pytest.raises(BusAway, match="ermission"):
        await link.look("calls:Scheduler:m")


async def test_calls_go_out_beside_one_that_may_not_be_made(link: Any, operator: Any) -> None:
    """Somebody has given the process too few rights, as by a file of users of an older version."""
    opens = [("calls:Worker:m", b"no"), ("calls:Scheduler:m", b"call"), ("calls:Worker:m", b"no")]
    batch = Batch(3, opens=opens, entries=[("gateway-1", b"a")], settled=[("calls:Tokenizer:m", "1-1")])
    refused, number, *rest = await link.publish(batch)
    assert (refused, rest) == (None, [None])
    assert [one.decode() for one, _ in await operator.xrange("quire:calls:Scheduler:m")] == [number]
    assert await operator.ttl("quire:calls:Scheduler:m") > 0, "a door runs out that nobody uses any more"
    assert await inbox(operator) == [b"a"]


async def test_a_call_that_may_not_be_made_ends_and_others_do_not_wait_for_it(
    server: RedisServer, operator: Any
) -> None:
    async with Node(RedisBus(USERS.url("tokenizer", server.address)), "tokenizer") as node:
        denied = node.channel("m").unary_unary("/quire.Worker/Execute")(b"x", wait_for_ready=True)
        with pytest.raises(AioRpcError, match="lets this process make no calls at calls:Worker:m"):
            async with asyncio.timeout(LIMIT):
                await denied
        allowed = node.channel("m").unary_unary("/quire.Scheduler/Generate")(b"x", wait_for_ready=True)
        await node.outbox.empty()
        assert await operator.xlen(f"quire:{door_of('quire.Scheduler', 'm')}") == 1
        allowed.cancel()


async def test_a_read_that_may_not_be_interrupted_ends_by_itself(server: RedisServer, operator: Any) -> None:
    """As with a Redis that a provider runs, whose users may not administer connections."""
    async with administrator(server) as admin:
        await admin.execute_command("ACL", "SETUSER", "tokenizer", "-client|unblock")
        link = await RedisBus(USERS.url("tokenizer", server.address)).connect("tokenizer-1")
        try:
            await link.take_lease(b"{}", 5)
            await link.join("calls:Tokenizer:quiet")
            reading = asyncio.ensure_future(link.take("calls:Tokenizer:quiet", 1))
            while not any(one["cmd"] == "xreadgroup" for one in await admin.client_list()):
                await asyncio.sleep(0.01)
            await link.wake("calls:Tokenizer:quiet")
            assert not reading.done()
            await operator.xadd("quire:calls:Tokenizer:quiet", {b"e": b"call"})
            assert [one.payload for one in await reading] == [b"call"]
        finally:
            await admin.execute_command("ACL", "SETUSER", "tokenizer", "+client|unblock")
            await link.close(goodbye=True)


async def test_a_redis_that_may_drop_requests_is_told_of(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with administrator(server) as admin:
        for memory, policy, told in (
            ("1gb", "noeviction", False),
            ("0", "allkeys-lru", False),
            ("1gb", "allkeys-lru", True),
            ("1gb", "volatile-ttl", True),
        ):
            caplog.clear()
            await admin.config_set("maxmemory", memory)
            await admin.config_set("maxmemory-policy", policy)
            link = await RedisBus(USERS.url("tokenizer", server.address)).connect("tokenizer-1")
            await link.close(goodbye=False)
            said = [one.getMessage() for one in caplog.records if "noeviction" in one.getMessage()]
            assert len(said) == told, (memory, policy)
            assert all(policy in one for one in said)
        await admin.config_set("maxmemory-policy", "noeviction")
        await admin.config_set("maxmemory", "0")
