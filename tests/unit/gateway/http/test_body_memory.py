"""All bodies together are bounded, and what an answered request held is free again."""

import asyncio
import contextlib
import json

import pytest

from gateway.errors import Overloaded
from gateway.http.body_memory import MAX_HELD_BYTES, RESERVE, SMALL, BodyMemory, Held, HoldsBodies
from gateway.http.caller import Caller
from tests.unit.gateway.conftest import tell

ASK = {"model": "m", "prompt": "A" * 1000}
SIZE = len(json.dumps(ASK, separators=(",", ":")))
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_counting():
    memory = BodyMemory(16, small=0)
    first, second = Held(memory), Held(memory)
    first.grow(3)
    first.grow(3)
    with pytest.raises(Overloaded):
        second.grow(3)
    second.expect(2)
    second.grow(2)
    assert memory.held == 8, "half of all"
    first.release()
    assert memory.held == 2
    second.release()
    second.release()
    assert memory.held == 0
    assert not memory._by_tenant


@pytest.mark.parametrize(
    ("read", "answered", "counted"),
    [(0, SMALL, 0), (0, 2**20, 2**20), (2**20, 2**20, 2**20), (9, 2**20, 2**20)],
)
async def test_an_answer_takes_no_more_than_its_request_unless_it_is_larger(read, answered, counted):
    memory, held = BodyMemory(), []

    async def answer(scope, receive, send):
        scope["state"]["body"].grow(read)
        await send({"type": "http.response.body", "body": b"x" * answered})

    async def send(message):
        held.append(memory.held)

    scope = {"type": "http", "state": {"caller": Caller("tenant")}}
    await HoldsBodies(answer, memory)(scope, None, send)
    assert (held, memory.held) == ([counted], 0)


def test_a_tenant_that_takes_what_it_can_leaves_as_much():
    memory = BodyMemory(1000, small=0)

    def fill(tenant):
        held, taken = Held(memory, tenant), 0
        with contextlib.suppress(Overloaded):
            while taken < 2000:
                held.grow(1)
                taken += 1
        return taken

    assert fill("flood") == 500
    assert fill("another") == 250
    assert fill("third") == 125
    Held(memory, "fourth").grow(50)


def test_floods_together_leave_a_reserve_for_who_holds_little():
    memory = BodyMemory(1000, reserve=50, small=10)
    for number in range(30):
        flood = Held(memory, f"flood-{number}")
        with contextlib.suppress(Overloaded):
            while True:
                flood.grow(1)
    assert memory.held == 1000 + 50, "the last of them had what is small alone"


def test_what_one_may_hold_in_any_case_is_there_for_as_many_as_the_reserve_is_for():
    memory = BodyMemory(1000, reserve=80, small=10)
    for number in range(10):
        flood = Held(memory, f"flood-{number}")
        with contextlib.suppress(Overloaded):
            while True:
                flood.grow(7)
    before = memory.held
    late = [Held(memory, f"late-{number}") for number in range(5)]
    for one in late:
        one.expect(10)
        one.grow(10)
        with pytest.raises(Overloaded):
            one.grow(1)
    with pytest.raises(Overloaded):
        Held(memory, "latest").grow(memory._most + memory._reserve - memory.held + 1)
    for one in late:
        one.release()
    assert memory.held == before


async def test_a_body_for_which_there_is_no_room_is_refused_before_it_is_sent(gateway):
    gateway.app.state.bodies.held = MAX_HELD_BYTES + RESERVE - 100
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(HEAD + b"Content-Length: 101\r\n\r\n")
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    assert b" 429 " in head
    assert b"retry-after: 1\r\n" in head.lower()
    writer.close()
    assert gateway.app.state.bodies.held == MAX_HELD_BYTES + RESERVE - 100


async def test_a_body_of_unknown_length_is_refused_when_there_is_no_more_room(gateway):
    gateway.app.state.bodies.held = MAX_HELD_BYTES + RESERVE - 100

    async def body():
        for _ in range(3):
            yield b" " * 50

    answer = await gateway.http.post("/v1/completions", content=body())
    assert answer.status_code == 429
    assert gateway.app.state.bodies.held == MAX_HELD_BYTES + RESERVE - 100
    small = {"model": "m", "prompt": "A"}
    assert (await gateway.http.post("/v1/completions", json=small)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_body_counts_until_its_request_is_answered(gateway, stream):
    memory, held = gateway.app.state.bodies, []

    async def generate(request, context):
        held.append(memory.held)
        async for chunk in tell(request, context):
            yield chunk

    gateway.tokenizer.generate = generate
    for _ in range(2):
        answer = await gateway.http.post("/v1/completions", json=ASK | {"stream": stream})
        assert answer.status_code == 200
    assert all(SIZE <= size < 2 * SIZE for size in held)
    while memory.held:
        await asyncio.sleep(0)


async def test_announcing_a_body_holds_nothing(gateway):
    _, writer = await asyncio.open_connection(*gateway.address)
    writer.write(HEAD + b"Content-Length: 4000000\r\n\r\n{")
    bodies = gateway.app.state.bodies
    while not bodies.held:
        await asyncio.sleep(0)
    assert bodies.held == 1, "the byte that has come, and not those that were announced"
    writer.close()
    while bodies.held:
        await asyncio.sleep(0)
    assert not bodies._by_tenant, "nothing is kept of who has left"
