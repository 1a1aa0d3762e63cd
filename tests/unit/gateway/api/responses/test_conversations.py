"""Conversations: the endpoints, and responses that go on from them."""

import json

import openai
import pytest

from gateway.api.responses.answer_schema import ResponseAnswer
from gateway.api.responses.conversations_schema import (
    Conversation,
    ConversationItem,
    ConversationItems,
    DeletedConversation,
)
from tests.unit.gateway.api.anthropic.test_messages import STORY, WHOLE, says
from tests.unit.gateway.api.responses.test_stored import TOOLS, asked, client_of, store

__all__ = ["client_of", "store"]

NOBODY = f"conv_{0:032x}"
HELLO = [{"type": "message", "role": "user", "content": "Hello."}]


def texts(items):
    return [item.content[0].text for item in items]


async def listed(client, conversation, **query):
    return (await client.conversations.items.list(conversation.id, order="asc", **query)).data


async def test_it_is_made_changed_and_deleted(client_of):
    client = client_of()
    made = await client.conversations.create(items=HELLO, metadata={"a": "b"})
    assert (made.object, made.metadata) == ("conversation", {"a": "b"})
    assert await client.conversations.retrieve(made.id) == made
    changed = await client.conversations.update(made.id, metadata={"c": "d"})
    assert (changed.id, changed.created_at, changed.metadata) == (made.id, made.created_at, {"c": "d"})
    assert await client.conversations.retrieve(made.id) == changed
    assert texts(await listed(client, made)) == ["Hello."]
    gone = await client.conversations.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "conversation.deleted")
    for asking in (
        client.conversations.retrieve,
        client.conversations.delete,
        client.conversations.items.list,
    ):
        with pytest.raises(openai.NotFoundError, match=made.id):
            await asking(made.id)


async def test_items_come_and_go(client_of):
    client = client_of()
    made = await client.conversations.create()
    more = [{"role": "user", "content": text} for text in "abcde"]
    added = await client.conversations.items.create(made.id, items=more)
    assert (texts(added.data), added.has_more) == (list("abcde"), False)
    assert (added.first_id, added.last_id) == (added.data[0].id, added.data[-1].id)
    page = await client.conversations.items.list(made.id, limit=2)
    assert (texts(page.data), page.has_more) == (["e", "d"], True)
    assert texts([item async for item in page]) == list("edcba")
    third = added.data[2]
    assert await client.conversations.items.retrieve(third.id, conversation_id=made.id) == third
    left = await client.conversations.items.delete(third.id, conversation_id=made.id)
    assert left == await client.conversations.retrieve(made.id)
    assert texts(await listed(client, made)) == list("abde")
    for asking in (client.conversations.items.retrieve, client.conversations.items.delete):
        with pytest.raises(openai.NotFoundError, match=third.id):
            await asking(third.id, conversation_id=made.id)
    with pytest.raises(openai.BadRequestError, match="has an item"):
        await client.conversations.items.create(made.id, items=[{**more[0], "id": added.data[0].id}])


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("stored", [False, True])
async def test_responses_go_on_from_it_and_are_added(gateway, client_of, streamed, stored):
    client, other = client_of(), client_of()
    made = await client.conversations.create(items=[{"role": "system", "content": "Be brief."}])

    async def respond(text, **fields):
        fields = {"model": "m", "input": text, "store": stored} | fields
        if not streamed:
            return await other.responses.create(**fields)
        async with other.responses.stream(**fields) as stream:
            return await stream.get_final_response()

    gateway.tokenizer.generate = says(WHOLE)
    first = await respond("A fox?", conversation=made.id, tools=TOOLS)
    assert first.conversation.id == made.id
    gateway.tokenizer.generate = says("I see.")
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "snow"}
        for item in first.output
        if item.type == "function_call"
    ]
    await respond(results, conversation={"id": made.id}, tools=TOOLS)
    seen = [
        ("system", "Be brief.", "", 0),
        ("user", "A fox?", "", 0),
        ("assistant", "I look.", "Where?", 2),
        ("tool", "snow", "", 0),
        ("tool", "snow", "", 0),
    ]
    assert asked(gateway) == seen
    await respond("And?", conversation=made.id)
    assert asked(gateway) == [*seen, ("assistant", "I see.", "", 0), ("user", "And?", "", 0)]
    found = await listed(client, made)
    assert [item.type for item in found] == [
        *("message", "message", "reasoning", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "message", "message", "message"),
    ]
    assert [one.id for one in found[2:6]] == [one.id for one in first.output]
    # What is referred to is an item of the conversation already.
    if stored:
        reference = {"type": "item_reference", "id": first.output[0].id}
        await respond([reference], conversation=made.id)
        assert len(await listed(client, made)) == len(found) + 1


async def test_an_answer_that_fails_is_not_added(gateway, client_of):
    client = client_of()
    made = await client.conversations.create()

    async def fails(request, context):
        await context.abort(14, "gone")
        yield

    usual, gateway.tokenizer.generate = gateway.tokenizer.generate, fails
    with pytest.raises(openai.APIError):
        await client.responses.create(model="m", input="A fox?", conversation=made.id, timeout=5)
    assert await listed(client, made) == []
    gateway.tokenizer.generate = usual
    await client.responses.create(model="m", input="A fox?", conversation=made.id)
    assert texts(await listed(client, made)) == ["A fox?", STORY]


async def test_a_conversation_that_is_deleted_meanwhile_stays_deleted(gateway, client_of):
    client = client_of()
    made = await client.conversations.create()
    whole = says(STORY)

    async def generate(request, context):
        await client.conversations.delete(made.id)
        async for chunk in whole(request, context):
            yield chunk

    gateway.tokenizer.generate = generate
    answer = await client.responses.create(model="m", input="A fox?", conversation=made.id)
    assert await client.responses.retrieve(answer.id) == answer
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.list(made.id)


async def test_answers_are_as_documented(client_of):
    client = client_of()
    made = await client.conversations.with_raw_response.create(items=HELLO)
    name = Conversation.model_validate_json(made.content, strict=True).id
    answer = await client.responses.with_raw_response.create(model="m", input="A fox?", conversation=name)
    ResponseAnswer.model_validate_json(answer.content, strict=True)
    items = await client.conversations.items.with_raw_response.list(name)
    found = ConversationItems.model_validate_json(items.content, strict=True)
    item = await client.conversations.items.with_raw_response.retrieve(found.last_id, conversation_id=name)
    ConversationItem.model_validate_json(item.content, strict=True)
    assert json.loads(item.content) == found.data[-1]
    gone = await client.conversations.with_raw_response.delete(name)
    DeletedConversation.model_validate_json(gone.content, strict=True)


async def test_another_tenant_does_not_find_it(client_of):
    client, other = client_of(), client_of("b")
    made = await client.conversations.create(items=HELLO)
    (item,) = await listed(client, made)
    for asking in (
        other.conversations.retrieve(made.id),
        other.conversations.delete(made.id),
        other.conversations.update(made.id, metadata={}),
        other.conversations.items.list(made.id),
        other.conversations.items.create(made.id, items=HELLO),
        other.conversations.items.retrieve(item.id, conversation_id=made.id),
        other.conversations.items.delete(item.id, conversation_id=made.id),
        other.responses.create(model="m", input="A fox?", conversation=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            await asking
    assert await listed(client, made) == [item]


async def test_what_is_refused(client_of):
    client = client_of()
    made = await client.conversations.create()
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(
            model="m", input="A", conversation=made.id, previous_response_id=f"resp_{0:032x}"
        )
    assert refused.value.param == "conversation"
    for asking, param in (
        (client.conversations.create(items=HELLO * 21), "items"),
        (client.conversations.create(items=[{"type": 3}]), "items[0].type"),
        (client.conversations.create(items=[HELLO[0] | {"id": "x"}] * 2), "items"),
        (client.conversations.items.create(made.id, items=[HELLO[0] | {"id": "x"}] * 2), "items"),
        (client.conversations.items.create(made.id, items=[{"type": "computer_call"}]), "items"),
        (client.conversations.create(items=[{"type": "item_reference", "id": "x"}]), "items[0]"),
        (client.conversations.create(metadata={"a": 1}), "metadata.a"),
        (client.conversations.update(made.id, extra_body={}, metadata=openai.omit), "metadata"),
        (client.conversations.items.create(made.id, items=[]), "items"),
        (client.conversations.items.list(made.id, limit=0), "limit"),
        (client.conversations.items.list(made.id, after="x"), "after"),
        (client.responses.create(model="m", input="A", conversation={"name": "x"}), "conversation"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await asking
        assert refused.value.param == param
    with pytest.raises(openai.NotFoundError) as missing:
        await client.responses.create(model="m", input="A", conversation=NOBODY)
    assert missing.value.param == "conversation"


async def test_a_gateway_that_stores_nothing(client_of):
    client = client_of(store=None)
    with pytest.raises(openai.NotFoundError):
        await client.conversations.create()
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="m", input="A", conversation=NOBODY)
    assert refused.value.param == "conversation"
