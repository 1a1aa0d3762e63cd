"""Stored responses: going on from them, and the endpoints that show and delete them."""

import json
import threading
from base64 import b64encode
from types import SimpleNamespace

import httpx
import openai
import pytest

from gateway import parsing
from gateway.api.common.fields import MAX_MESSAGES
from gateway.api.responses import endpoints as responses
from gateway.api.responses import stored as stored_responses
from gateway.api.responses.answer_schema import DeletedResponse, InputItems, ResponseAnswer
from gateway.api.responses.schema import ResponsesBody
from gateway.upstream import response_store
from gateway.upstream.conversation_store import Added
from gateway.upstream.response_store import ResponseStore
from gateway.upstream.stored_room import MAX_RECORD_BYTES
from ops.runtime.image_store import ImageStore
from tests.unit.gateway.api.anthropic.test_messages import STORY, WHOLE, says
from tests.unit.gateway.conftest import JSON, app_of, stores_of

TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
NOBODY = f"resp_{0:032x}"


@pytest.fixture
def store(line, prefix):
    return ResponseStore(line, prefix, seconds=600, tenant_bytes=2**24, all_bytes=2**24)


@pytest.fixture
def client_of(gateway, store, keys_of, line, prefix):
    """Makes the openai client of a tenant, each with a gateway of its own."""

    def client_of(tenant="a", store=store):
        stores = stores_of(responses=store, images=ImageStore(line, prefix))
        app = app_of(gateway.backend, keys_of({"sk-a": "a", "sk-b": "b"}), stores=stores)
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), headers=JSON)
        return openai.AsyncOpenAI(
            base_url="http://localhost/v1", api_key=f"sk-{tenant}", http_client=http, max_retries=0
        )

    return client_of


def asked(gateway):
    """The conversation that the tokenizer was last asked to continue."""
    return [
        (one.role, one.content, one.reasoning, len(one.tool_calls))
        for one in gateway.tokenizer.requests[-1].chat.messages
    ]


async def test_a_conversation_goes_on_at_another_gateway(gateway, client_of):
    gateway.tokenizer.generate = says(WHOLE)
    first = await client_of().responses.create(
        model="m", input="A fox?", instructions="Be brief.", tools=TOOLS
    )
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": one.call_id, "output": "snow"} for one in calls]
    gateway.tokenizer.generate = says("I see.")
    async with client_of().responses.stream(
        model="m", input=results, previous_response_id=first.id, tools=TOOLS
    ) as stream:
        second = await stream.get_final_response()
    assert second.previous_response_id == first.id
    before = [
        ("user", "A fox?", "", 0),
        ("assistant", "I look.", "Where?", 2),
        ("tool", "snow", "", 0),
        ("tool", "snow", "", 0),
    ]
    assert asked(gateway) == before
    # The first one need not be there any more.
    await client_of().responses.delete(first.id)
    await client_of().responses.create(model="m", input="And?", previous_response_id=second.id)
    assert asked(gateway) == [*before, ("assistant", "I see.", "", 0), ("user", "And?", "", 0)]
    items = await client_of().responses.input_items.list(second.id, order="asc")
    assert [item.type for item in items.data] == [
        *("message", "reasoning", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output"),
    ]
    assert [one.to_dict() for one in items.data[1:5]] == [one.to_dict() for one in first.output]


async def test_nothing_need_be_added_to_go_on(gateway, client_of):
    client = client_of()
    first = await client.responses.create(model="m", input="A fox?")
    await client.responses.create(model="m", previous_response_id=first.id)
    assert asked(gateway) == [("user", "A fox?", "", 0), ("assistant", STORY, "", 0)]
    counted = await client.responses.input_tokens.count(
        model="m", instructions="Be brief.", previous_response_id=first.id
    )
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", len(f"Be brief.A fox?{STORY}"))


async def test_items_are_named_instead_of_sent_again(gateway, client_of):
    client = client_of()
    first = await client.responses.create(model="m", input="A fox?")
    (question,) = (await client.responses.input_items.list(first.id)).data
    references = [{"type": "item_reference", "id": one.id} for one in (question, *first.output)]
    second = await client.responses.create(
        model="m", input=[*references, {"role": "user", "content": "And?"}]
    )
    assert asked(gateway) == [("user", "A fox?", "", 0), ("assistant", STORY, "", 0), ("user", "And?", "", 0)]
    # The second one has what the first had, under the same names.
    await client.responses.delete(first.id)
    named = [*references, {"type": "item_reference", "id": second.output[0].id}]
    await client.responses.create(model="m", input=named)
    assert [text for _, text, *_ in asked(gateway)] == ["A fox?", STORY, STORY]


async def test_what_was_stored_is_shown_to_its_tenant_alone(client_of):
    client, other = client_of(), client_of("b")
    made = await client.responses.create(model="m", input="A fox?", metadata={"a": "b"})
    assert await client.responses.retrieve(made.id) == made
    for asking in (other.responses.retrieve, other.responses.delete, other.responses.input_items.list):
        with pytest.raises(openai.NotFoundError, match=made.id):
            await asking(made.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await other.responses.create(model="m", input="And?", previous_response_id=made.id)
    assert (refused.value.param, refused.value.code) == (
        "previous_response_id",
        "previous_response_not_found",
    )
    reference = {"type": "item_reference", "id": made.output[0].id}
    with pytest.raises(openai.BadRequestError, match="not found"):
        await other.responses.create(model="m", input=[reference])
    assert await client.responses.retrieve(made.id) == made


async def test_what_is_not_to_be_stored_is_not(client_of, line, prefix):
    made = await client_of().responses.create(model="m", input="A fox?", store=False)
    (keys,) = await line.execute(("KEYS", f"{prefix}*"))
    assert keys == []
    with pytest.raises(openai.NotFoundError):
        await client_of().responses.retrieve(made.id)


async def test_a_gateway_that_stores_nothing(client_of):
    client = client_of(store=None)
    made = await client.responses.create(model="m", input="A fox?")
    assert made.store is False
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="m", input="A fox?", store=True)
    assert refused.value.param == "store"
    for asking in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            await asking(made.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        await client.responses.create(model="m", input="And?", previous_response_id=made.id)


async def test_pages_of_items(client_of):
    client = client_of()
    texts = [{"role": "user", "content": text} for text in "abcde"]
    made = await client.responses.create(model="m", input=texts)
    page = await client.responses.input_items.list(made.id, limit=2)
    assert [[item.content[0].text for item in page.data], page.has_more] == [["e", "d"], True]
    found = [item.content[0].text async for item in page]
    assert found == list("edcba")
    found = [
        item.content[0].text
        async for item in client.responses.input_items.list(made.id, order="asc", limit=1)
    ]
    assert found == list("abcde")


async def test_what_is_stored_is_parsed_beside_the_event_loop(client_of, monkeypatch):
    client, threads = client_of(), {}
    talk = await client.conversations.create(items=[USER])
    first = await client.responses.create(model="m", input="A fox?")

    def noting(name, real):
        def noted(*arguments):
            threads.setdefault(name, set()).add(threading.current_thread().name.split("_")[0])
            return real(*arguments)

        return noted

    monkeypatch.setattr(parsing, "PARSED_AT_ONCE", 0)  # as if everything were large
    item = stored_responses._ITEM
    ways = {name: noting(name, getattr(item, name)) for name in ("validate_json", "validate_python")}
    monkeypatch.setattr(stored_responses, "_ITEM", SimpleNamespace(**ways))
    monkeypatch.setattr(response_store, "json", SimpleNamespace(loads=noting("loads", json.loads)))
    monkeypatch.setattr(ResponsesBody, "chat", noting("chat", ResponsesBody.chat))
    monkeypatch.setattr(responses, "stored_items", noting("stored_items", responses.stored_items))
    await client.responses.create(model="m", input="And?", conversation=talk.id)
    await client.responses.create(model="m", input="And?", previous_response_id=first.id)
    names = ("validate_json", "validate_python", "loads", "chat", "stored_items")
    assert threads == {name: {"parse"} for name in names}


async def test_no_more_items_than_a_request_may_have(client_of, store):
    client = client_of()
    talk = await client.conversations.create()
    items = [{"id": f"i{n}", "type": "message", "role": "user", "content": "A"} for n in range(MAX_MESSAGES)]
    await store.conversations.add("a", Added(talk.id, items[1:]))
    made = await client.responses.create(model="m", input="A", conversation=talk.id)
    for before in ({"conversation": talk.id}, {"previous_response_id": made.id}):
        with pytest.raises(openai.BadRequestError, match=f"more than {MAX_MESSAGES}") as refused:
            await client.responses.create(model="m", input="A", **before)
        assert [refused.value.param] == list(before)


async def test_answers_are_as_documented(client_of):
    client = client_of()
    assistant = [{"role": "assistant", "content": "A"}, {"role": "user", "content": "B"}]
    made = await client.responses.create(model="m", input=assistant)
    whole = await client.responses.with_raw_response.retrieve(made.id)
    ResponseAnswer.model_validate_json(whole.content, strict=True)
    items = await client.responses.input_items.with_raw_response.list(made.id)
    found = InputItems.model_validate_json(items.content, strict=True)
    assert found.data[-1]["content"] == [
        {"type": "output_text", "text": "A", "annotations": [], "logprobs": []}
    ]
    gone = await client.responses.with_raw_response.delete(made.id)
    DeletedResponse.model_validate_json(gone.content, strict=True)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=x", "limit"),
        ("/input_items?order=up", "order"),
        ("?stream=x", "stream"),
        ("?starting_after=1", "starting_after"),
        ("?stream=true&starting_after=x", "starting_after"),
    ],
)
async def test_what_is_refused(refusing, query, param):
    answer = await refusing.get(f"/v1/responses/{NOBODY}{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_an_answer_that_cannot_be_stored_has_failed(gateway, client_of, line, prefix):
    await line.execute(("SET", f"{prefix}responses:all", "not a set"))
    with pytest.raises(openai.InternalServerError, match="cannot be reached"):
        await client_of().responses.create(model="m", input="A fox?")
    events = [event async for event in await client_of().responses.create(model="m", input="A", stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[-1].type, events[-1].response.error.code) == ("response.failed", "server_error")


PNG = b"\x89PNG\r\n\x1a\n"
USER = {"role": "user", "content": [{"type": "input_text", "text": "A"}]}


def image(size=8):
    url = f"data:image/png;base64,{b64encode(PNG.ljust(size)).decode()}"
    return USER | {"content": [*USER["content"], {"type": "input_image", "image_url": url, "detail": "low"}]}


async def test_a_conversation_goes_on_with_its_images(gateway, client_of):
    gateway.backend.lease_list[0].info["images"] = True
    first = await client_of().responses.create(model="m", input=[image()])
    (asked,) = (await client_of().responses.input_items.list(first.id)).data
    assert asked.content[1].model_dump(exclude_none=True) == image()["content"][1]
    await client_of().responses.create(model="m", input="And?", previous_response_id=first.id)
    question, _, more = gateway.tokenizer.requests[-1].chat.messages
    assert (question.content, more.content) == ("A", "And?")
    assert [(one.offset, one.low_detail) for one in question.images] == [(1, True)]


async def test_what_has_no_room_is_refused_before_it_is_answered(gateway, client_of):
    gateway.backend.lease_list[0].info["images"] = True
    client, large = client_of(), image(MAX_RECORD_BYTES * 3 // 4 + 100)
    with pytest.raises(openai.APIStatusError) as refused:
        await client.responses.create(model="m", input=[large])
    assert (refused.value.status_code, refused.value.param) == (413, "store")
    made = await client.conversations.create()
    with pytest.raises(openai.APIStatusError) as refused:
        await client.responses.create(model="m", input=[large], conversation=made.id, store=False)
    assert (refused.value.status_code, refused.value.param) == (413, "conversation")
    assert gateway.tokenizer.requests == []
    await client.responses.create(model="m", input=[large], store=False)
