"""A flood of requests begins a few at a time, and another tenant's request has its turn among the first."""

import asyncio

from gateway.http.starts import Starts
from tests.unit.gateway.conftest import app_of, serving


async def test_a_few_begin_in_each_turn_of_the_loop():
    starts, begun, turns = Starts(3), 0, []

    async def begin():
        nonlocal begun
        await starts.turn("a")
        begun += 1

    tasks = [asyncio.ensure_future(begin()) for _ in range(20)]
    while not all(task.done() for task in tasks):
        before = begun
        await asyncio.sleep(0)
        turns.append(begun - before)
    assert sum(turns) == 20
    assert max(turns) <= 2 * 3, "those that found no queue, and those whose turn had come"


async def test_tenants_have_turns_however_many_requests_of_one_wait():
    starts, begun = Starts(2), []

    async def begin(tenant):
        await starts.turn(tenant)
        begun.append(tenant)

    await asyncio.gather(*map(begin, "a" * 100 + "b" * 2 + "c"))
    assert len(begun) == 103
    assert [begun.index(tenant) < 8 for tenant in "abc"] == [True] * 3


async def test_who_has_left_keeps_nobody_waiting():
    starts, begun = Starts(1), []

    async def begin(number):
        await starts.turn("a")
        begun.append(number)

    tasks = [asyncio.ensure_future(begin(number)) for number in range(5)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert begun == [0, 1, 3, 4]
    await asyncio.wait_for(starts.turn("b"), 60)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert starts._next is None, "nothing runs while nobody asks"


async def test_a_flood_over_http_lets_another_tenant_pass(backend, keys_of):
    flood, ended = 400, []
    app = app_of(backend, keys_of({"sk-a": "a", "sk-b": "b"}))

    async def ask(reader, writer, tenant):
        head = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-{tenant}\r\n\r\n"
        writer.write(head.encode())
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        ended.append(tenant)
        writer.close()

    async with serving(app) as server:
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(flood + 1)]
        await asyncio.gather(*(ask(*one, "a" if at < flood else "b") for at, one in enumerate(opened)))
    assert ended.index("b") < flood / 2, "it came last"
