"""Stored responses: who finds them, how long, and which go when there are too many."""

import asyncio
from typing import Any

import pytest

from gateway import redis_replies
from gateway.errors import TooLarge, Unavailable
from gateway.upstream import response_store
from gateway.upstream.response_store import MAX_RECORD_BYTES, ResponseStore
from proto.rpc.line import Line

ROOM = 4096
"""Bytes of one record with its keys."""
TEXT = "❄" * ((ROOM - 512 - len('{"a":""}')) // 3)


def name(number: int) -> str:
    return f"resp_{number:032x}"


@pytest.fixture
def store(line: Line, prefix: str) -> ResponseStore:
    return ResponseStore(line, prefix, seconds=600, tenant_bytes=3 * ROOM, all_bytes=5 * ROOM)


async def kept(store: ResponseStore, tenant: str) -> list[int]:
    return [number for number in range(1, 9) if await store.get(tenant, name(number)) is not None]


async def test_what_is_put_is_found_by_its_tenant_until_it_is_deleted(store: ResponseStore) -> None:
    await store.put("a", name(1), {"a": "❄"})
    sizes: list[int] = []
    assert await store.get("a", name(1), sizes.append) == {"a": "❄"}
    assert await store.get("b", name(1), sizes.append) is None
    assert sizes == [len('{"a":"❄"}'.encode())]
    assert not await store.delete("b", name(1))
    assert await store.delete("a", name(1))
    assert not await store.delete("a", name(1))
    assert await store.get("a", name(1)) is None


async def test_items_are_found_as_they_were(line: Line, prefix: str) -> None:
    store = ResponseStore(line, prefix, seconds=600, tenant_bytes=2**24, all_bytes=2**24)
    items = [{"id": f"i{number}", "text": "a\nb\u2028" * 40} for number in range(1000)]
    for number, some in enumerate(([], items[:1], items)):
        record = {"response": {"output": items[:2]}, "input": some}
        await store.put("a", name(number), record)
        assert await store.get("a", name(number)) == record


async def test_tenants_read_in_turns_and_one_after_the_other(line: Line, prefix: str) -> None:
    store = ResponseStore(line, prefix, seconds=600, tenant_bytes=2**24, all_bytes=2**24)
    for tenant in "ab":
        await store.put(tenant, name(1), {"text": tenant * 2**20})
    execute, under_way, most = line.execute, 0, 0

    async def counted(*commands: Any, **named: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await execute(*commands, **named)
        finally:
            under_way -= 1

    line.execute = counted  # type: ignore[method-assign]
    ended: list[str] = []

    async def read(tenant: str) -> None:
        await store.get(tenant, name(1))
        ended.append(tenant)

    await asyncio.gather(*map(read, "a" * 20 + "b"))
    assert most == 1
    assert ended.index("b") <= 2, "it does not wait for all of the other tenant's"


async def test_names_of_tenants_do_not_reach_into_each_other(store: ResponseStore) -> None:
    await store.put("2001:db8::/64", name(1), {})
    assert await store.get("2001", f"db8::/64:{name(1)}") is None
    assert not await store.delete("2001", f"db8::/64:{name(1)}")
    assert await store.get("2001:db8::/64", name(1)) == {}


async def test_the_oldest_of_a_tenant_go_and_then_those_of_all(store: ResponseStore) -> None:
    for number in range(1, 5):
        await store.put("a:1", name(number), {"a": TEXT})
    assert await kept(store, "a:1") == [2, 3, 4]
    for number in (5, 6, 7):
        await store.put("b", name(number), {"a": TEXT})
    assert (await kept(store, "a:1"), await kept(store, "b")) == ([3, 4], [5, 6, 7])
    assert await store.delete("b", name(5))
    await store.put("c", name(8), {"a": TEXT})
    assert await kept(store, "a:1") == [3, 4], "what was deleted takes no room"


async def test_a_response_that_is_being_made_is_not_the_oldest(
    store: ResponseStore, line: Line, prefix: str
) -> None:
    for number, record in ((1, {}), (2, {"a": TEXT})):
        await store.put("a", name(number), record)
        await line.execute(("ZADD", f"{prefix}responses:tenant:a", number, f"{name(number)}:a"))
    await store.append("a", name(1), 0, [b"{}"])
    await store.put("a", name(3), {"a": TEXT})
    assert await kept(store, "a") == [1, 3]


async def test_nothing_is_left_of_what_has_run_out(line: Line, prefix: str) -> None:
    store = ResponseStore(line, prefix, seconds=600, tenant_bytes=3 * ROOM, all_bytes=5 * ROOM)
    for number in (1, 2):
        await store.put("a", name(number), {})
    # As if they had been put ten minutes ago.
    base = f"{prefix}responses:"
    (member,) = [one for one in await members(line, f"{base}all") if name(1).encode() in one]
    await line.execute(("ZADD", f"{base}all", 1, member), ("DEL", f"{base}of:a:{name(1)}"))
    await store.put("b", name(3), {})
    assert [one.split(b":")[0].decode() for one in await members(line, f"{base}tenant:a")] == [name(2)]
    for tenant, number in (("a", 2), ("b", 3)):
        await store.delete(tenant, name(number))
    (left,) = await line.execute(("KEYS", f"{prefix}*"))
    assert left == []


@pytest.mark.parametrize("events", [0, 1, 40])
async def test_what_responses_take_in_redis_is_what_is_counted(line: Line, prefix: str, events: int) -> None:
    store = ResponseStore(line, prefix, seconds=600, tenant_bytes=2**24, all_bytes=2**24)
    for number in range(100):
        await store.put("tenant", name(number), {"a": "x" * number})
        for event in range(events):
            await store.append("tenant", name(number), event, [b"x" * 200])
    (names,) = await line.execute(("KEYS", f"{prefix}*"))
    used = await line.execute(*(("MEMORY", "USAGE", one, "SAMPLES", "0") for one in names))
    (counted,) = await line.execute(("HGET", f"{prefix}responses:bytes", "all"))
    assert int(counted) / 2 < sum(used) <= int(counted)


async def members(line: Line, key: str) -> list[bytes]:
    (found,) = await line.execute(("ZRANGE", key, 0, -1))
    return list(found)


async def test_a_record_runs_out(store: ResponseStore, line: Line, prefix: str) -> None:
    await store.put("a", name(1), {})
    (left,) = await line.execute(("TTL", f"{prefix}responses:of:a:{name(1)}"))
    assert 500 < left <= 600


async def test_what_is_too_large_is_refused(store: ResponseStore) -> None:
    with pytest.raises(TooLarge, match="8 MiB"):
        await store.put("a", name(1), {"a": "x" * MAX_RECORD_BYTES})


async def test_who_follows_waits_while_redis_is_away(
    store: ResponseStore, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("a", name(1), {})
    await store.append("a", name(1), 0, [b"one"])
    run, away = response_store.run, 2

    async def sometimes(*command: Any, **options: Any) -> Any:
        nonlocal away
        if away:
            away -= 1
            raise Unavailable("away")
        return await run(*command, **options)

    monkeypatch.setattr(redis_replies, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(response_store, "run", sometimes)
    async with store.following("a", name(1)) as events:
        assert await anext(events) == b"one"
        away = 3
        await store.append("a", name(1), 1, [b"two"])
        assert await anext(events) == b"two"
        away = 10**6
        monkeypatch.setattr(response_store, "AWAY_SECONDS", 0.3)
        with pytest.raises(Unavailable):
            await anext(events)


async def test_what_redis_refuses_ends_who_follows(store: ResponseStore, line: Line, prefix: str) -> None:
    await store.put("a", name(1), {})
    await line.execute(("SET", f"{prefix}responses:events:a:{name(1)}", "no stream"))
    async with asyncio.timeout(response_store.AWAY_SECONDS / 2), store.following("a", name(1)) as events:
        with pytest.raises(redis_replies.Refused):
            await anext(events)


async def test_without_redis() -> None:
    store = ResponseStore(Line("redis://127.0.0.1:1"), "p:", seconds=1, tenant_bytes=1, all_bytes=1)
    with pytest.raises(Unavailable):
        await store.get("a", name(1))
