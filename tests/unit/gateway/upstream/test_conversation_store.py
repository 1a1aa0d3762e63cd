"""Conversations in Redis: their items in order, each once, within the room of the stored responses."""

import asyncio
import json

import pytest

from gateway.errors import TooLarge
from gateway.upstream import stored_room
from gateway.upstream.conversation_store import Added, ConversationStore
from gateway.upstream.response_store import ResponseStore
from gateway.upstream.stored_room import MAX_ITEMS
from proto.rpc.line import Line

SIZE = 700
"""More bytes than a conversation or a response without items takes."""


def named(number: int, kind: str = "conv") -> str:
    return f"{kind}_{number:032x}"


def items(*ids: str, text: str = "") -> list[dict[str, str]]:
    return [{"id": one, "text": text} for one in ids]


@pytest.fixture
def responses(line: Line, prefix: str) -> ResponseStore:
    return ResponseStore(line, prefix, seconds=600, tenant_bytes=3 * SIZE, all_bytes=6 * SIZE)


@pytest.fixture
def store(responses: ResponseStore) -> ConversationStore:
    return responses.conversations


async def begin(store: ConversationStore, number: int = 1, *ids: str, tenant: str = "a") -> str:
    await store.create(tenant, {"id": named(number)}, items(*ids))
    return named(number)


async def items_of(
    store: ConversationStore, tenant: str, conversation_id: str
) -> list[dict[str, str]] | None:
    texts = await store.items(tenant, conversation_id)
    return None if texts is None else list(map(json.loads, texts))


async def ids_of(store: ConversationStore, tenant: str, conversation_id: str) -> list[str]:
    return [one async for one in store.ids(tenant, conversation_id)]


async def taken(line: Line, prefix: str) -> dict[str, int]:
    (found,) = await line.execute(("HGETALL", f"{prefix}responses:bytes"))
    return {key.decode(): int(value) for key, value in zip(found[::2], found[1::2], strict=True)}


async def test_items_are_in_order_and_each_is_there_once(store: ConversationStore) -> None:
    one = await begin(store, 1, "z", "a")
    assert await store.add("a", Added(one, items("m", "a", "m", text="later")))
    assert await ids_of(store, "a", one) == ["z", "a", "m"]
    found = await items_of(store, "a", one)
    assert found == items("z", "a") + items("m", text="later"), "what is there stays as it is"
    assert await store.item("a", one, "m") == items("m", text="later")[0]
    assert await store.known("a", one, ["a", "x", "m"]) == {"a", "m"}
    assert await store.remove("a", one, "a")
    assert not await store.remove("a", one, "a")
    await store.add("a", Added(one, items("a")))
    assert await ids_of(store, "a", one) == ["z", "m", "a"]


async def test_many_items(store: ConversationStore, line: Line, prefix: str) -> None:
    large = ResponseStore(line, prefix, seconds=600, tenant_bytes=2**24, all_bytes=2**24).conversations
    one = await begin(large)
    ids = [f"item_{number}" for number in range(9000)]
    await large.add("a", Added(one, items(*ids)))
    assert await items_of(large, "a", one) == items(*ids)
    with pytest.raises(TooLarge, match="8 MiB or 4096 items"):
        await large.add("a", Added(one, items("one more")))
    assert await large.add("a", Added(one, items(*ids[:2]))), "they are there already"
    await large.create("a", {"id": named(2)}, items(*ids[:MAX_ITEMS]))
    assert await large.add("a", Added(named(2), items("answer"))), "what has been answered is kept"
    with pytest.raises(TooLarge):
        await large.add("a", Added(named(2), items("one more")))


async def test_one_tenant_does_not_find_another_s(store: ConversationStore) -> None:
    one = await begin(store, 1, "x")
    assert await store.get("b", one) is None
    assert await items_of(store, "b", one) is None
    assert await store.item("b", one, "x") is None
    assert await ids_of(store, "b", one) == []
    assert not await store.update("b", {"id": one})
    assert not await store.add("b", Added(one, items("y")))
    assert not await store.remove("b", one, "x")
    assert not await store.delete("b", one)
    assert await items_of(store, "a", one) == items("x")
    assert await store.get("a", f"{one}:x") is None
    assert await store.item("a", f"{one}:x", "x") is None


async def test_nothing_is_left_of_what_is_deleted(store: ConversationStore, line: Line, prefix: str) -> None:
    one = await begin(store, 1, "x", "y")
    await store.update("a", {"id": one, "more": "text"})
    assert await store.get("a", one) == {"id": one, "more": "text"}
    await store.remove("a", one, "x")
    await store.add("a", Added(one, items("z", "z")))
    assert await store.delete("a", one)
    assert not await store.delete("a", one)
    (left,) = await line.execute(("KEYS", f"{prefix}*"))
    assert left == []


async def test_all_keys_run_out_together(store: ConversationStore, line: Line, prefix: str) -> None:
    one = await begin(store, 1, "x")
    (keys,) = await line.execute(("KEYS", f"{prefix}responses:*:a:{one}"))
    assert len(keys) == 3
    for key in keys:
        await line.execute(("EXPIRE", key, 5))
    await store.add("a", Added(one, items("y")))
    for key in keys:
        (left,) = await line.execute(("TTL", key))
        assert 500 < left <= 600


async def test_conversations_and_responses_share_their_room(
    store: ConversationStore, responses: ResponseStore, line: Line, prefix: str
) -> None:
    text = "x" * (SIZE - 512 - len('{"a":""}'))
    one = await begin(store)
    for number in (1, 2):
        await responses.put("a", named(number, "resp"), {"a": text})
    # A conversation that grows is the newest one, so the oldest response goes.
    assert await store.add("a", Added(one, items("x", text="x" * 200)))
    assert await responses.get("a", named(1, "resp")) is None
    assert await responses.get("a", named(2, "resp")) is not None
    assert await ids_of(store, "a", one) == ["x"]
    assert (await taken(line, prefix))["tenant:a"] <= 3 * SIZE


async def test_a_response_and_what_it_adds_are_stored_together(
    store: ConversationStore, responses: ResponseStore
) -> None:
    one = await begin(store)
    added = Added(one, items("x"))
    for _ in range(2):
        await responses.put("a", named(1, "resp"), {}, added=added)
    assert await ids_of(store, "a", one) == ["x"]
    await store.delete("a", one)
    await responses.put("a", named(2, "resp"), {}, added=added)
    assert await responses.get("a", named(2, "resp")) == {}
    assert await ids_of(store, "a", one) == []


async def test_what_is_too_large_changes_nothing(
    responses: ResponseStore, store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_room, "MAX_RECORD_BYTES", SIZE)
    one = await begin(store)
    added = Added(one, items("x", text="x" * SIZE))
    with pytest.raises(TooLarge, match="conversation"):
        await store.add("a", added)
    with pytest.raises(TooLarge, match="conversation"):
        await responses.put("a", named(1, "resp"), {}, added=added)
    with pytest.raises(TooLarge, match="conversation"):
        await store.create("a", {"id": named(2)}, added.items)
    assert await responses.get("a", named(1, "resp")) is None
    assert await store.get("a", named(2)) is None
    assert await ids_of(store, "a", one) == []


async def test_answers_that_end_at_once_do_not_mix(store: ConversationStore) -> None:
    one = await begin(store)
    turns = [[f"{turn}{place}" for place in range(3)] for turn in "pqr"]
    await asyncio.gather(*(store.add("a", Added(one, items(*ids))) for ids in turns))
    ids = await ids_of(store, "a", one)
    assert sorted(ids[place : place + 3] for place in (0, 3, 6)) == turns
