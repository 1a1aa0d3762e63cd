"""A deployment with a secret: who does not know it can write to its streams, and is not heard."""

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError

from proto.rpc.bus import door_of
from proto.rpc.seal import Seal
from proto.wire_pb2 import Entry, Kind
from tests.contract.conftest import LIMIT

SECRET = b"a secret of this deployment alone"


async def deployed(world: Any, echo: SimpleNamespace, servicer: Any) -> SimpleNamespace:
    server = await world.node("server", secret=SECRET)
    client = await world.node("client", secret=SECRET)
    await world.serve(server, servicer, echo.add_EchoServicer_to_server)
    return SimpleNamespace(server=server, client=client, stub=echo.EchoStub(client.channel()))


def forged(server: Any, number: int) -> bytes:
    """An answer in the server's name."""
    entry = Entry(sender=server.id, epoch=server.epoch)
    entry.responses.add(call=number, seq=2, kind=Kind.MESSAGE, body=b"lies")
    entry.responses.add(call=number, seq=3, kind=Kind.STATUS).status.code = 0
    return entry.SerializeToString()


async def buried(world: Any, stream: str) -> bool:
    """Whether an entry of the stream was refused for its code."""
    letters = await world.dead_letters()
    return any(one.startswith(f"{stream} ") and "not written with" in one for one in letters)


async def test_whoever_has_it_is_heard(world: Any, echo: SimpleNamespace, servicer: Any) -> None:
    pair = await deployed(world, echo, servicer)
    assert [one.count async for one in pair.stub.Stream(echo.Text(count=5))] == list(range(5))


@pytest.mark.parametrize("seal", [Seal(), Seal(b"another one"), None], ids=["none", "another", "copied"])
async def test_a_forged_answer_is_a_dead_letter(
    world: Any, echo: SimpleNamespace, servicer: Any, until: Any, seal: Seal | None
) -> None:
    pair = await deployed(world, echo, servicer)
    call = pair.stub.Unary(echo.Text(text="wait"))
    await call.wait_for_connection()
    inbox = f"inbox:{pair.client.id}"
    entry = forged(pair.server, call._core.number)
    # Copied: an entry that was written to another inbox with the right secret.
    payload = seal.close(inbox, entry) if seal else Seal(SECRET).close(f"inbox:{pair.server.id}", entry)
    await world.add(inbox, {b"e": payload})

    await until(lambda: buried(world, inbox), "a dead letter")
    assert not call.done()
    servicer.go.set()
    assert (await call).text == "wait"


async def test_a_forged_call_is_a_dead_letter_and_the_next_one_served(
    world: Any, echo: SimpleNamespace, servicer: Any, until: Any
) -> None:
    pair = await deployed(world, echo, servicer)
    stranger = await world.node("client")
    call = echo.EchoStub(stranger.channel()).Unary(echo.Text(text="x"), timeout=1)
    with pytest.raises(AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: buried(world, door_of("contract.Echo")), "a dead letter")
    assert servicer.calls == 0
    async with asyncio.timeout(LIMIT):
        assert (await pair.stub.Unary(echo.Text(text="x"))).text == "x"
