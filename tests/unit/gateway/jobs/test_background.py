"""Background responses: made whether or not anybody waits, by whichever gateway lives."""

import asyncio
import json
from copy import deepcopy

import grpc
import openai
import pytest

from gateway.api.responses.answer_schema import RESPONSE_EVENTS, ResponseAnswer
from gateway.api.responses.background import ENDED
from gateway.api.responses.schema import OPAQUE
from gateway.behalf import Behalf
from gateway.http import sse
from gateway.http.body_memory import SMALL
from gateway.jobs.background import MOST_TAKES
from proto.tokenizer_pb2 import PromptInfo, TextChunk
from tests.unit.gateway.api.anthropic.test_messages import STORY, WHOLE, says
from tests.unit.gateway.api.responses.test_endpoints import TOOLS, put_together
from tests.unit.gateway.conftest import tell
from tests.unit.gateway.jobs.conftest import MOST

ASK = {"model": "m", "input": "A fox?", "background": True}


async def ended(client, response_id):
    """The response when it does not change any more."""
    async with asyncio.timeout(60):
        while (found := await client.responses.retrieve(response_id)).status not in ENDED:
            await asyncio.sleep(0.01)
    return found


async def followed(gateway, response_id, after=None):
    """The events of a response, each of which is as documented."""
    query = {"stream": "true"} | ({} if after is None else {"starting_after": after})
    answer = await gateway.http.get(f"/v1/responses/{response_id}", params=query)
    return events_of(answer)


def events_of(answer):
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    *events, rest = answer.text.split("\n\n")
    assert rest == ""
    found = []
    for event in events:
        name, data = (line.partition(": ")[2] for line in event.split("\n") if not line.startswith("id: "))
        found.append(RESPONSE_EVENTS[name].model_validate(json.loads(data), strict=True).model_dump())
        assert found[-1]["type"] == name
    return found


def stops_after(text, pieces, size=3):
    """A tokenizer that says the beginning of `text`, and then nothing for ever."""
    stopped = asyncio.Event()
    whole = says(text, size)

    async def generate(request, context):
        said = 0
        async for chunk in whole(request, context):
            if said > pieces:
                stopped.set()
                await asyncio.Event().wait()
            yield chunk
            said += 1

    return generate, stopped


async def test_it_is_the_response_that_a_waiting_client_gets(fleet):
    gateway = await fleet.start()
    waited = await gateway.client.responses.create(
        model="m", input="A fox?", temperature=0, metadata={"a": "b"}
    )
    queued = await gateway.client.responses.create(**ASK, temperature=0, metadata={"a": "b"})
    assert (queued.status, queued.background, queued.output, queued.usage) == ("queued", True, [], None)
    found = await ended(gateway.client, queued.id)
    assert (found.status, found.output_text, found.usage) == ("completed", STORY, waited.usage)
    assert (found.id, found.created_at, found.metadata) == (queued.id, queued.created_at, {"a": "b"})
    (item,) = (await gateway.client.responses.input_items.list(queued.id)).data
    assert item.content[0].text == "A fox?"
    more = await gateway.client.responses.create(model="m", input="And?", previous_response_id=queued.id)
    assert [one.content for one in fleet.tokenizer.requests[-1].chat.messages] == ["A fox?", STORY, "And?"]
    assert more.previous_response_id == queued.id


async def test_all_fields_reach_the_job(fleet):
    gateway = await fleet.start()
    fields = {
        "tools": TOOLS,
        "tool_choice": {"type": "function", "name": "look"},
        "text": {
            "format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
        },
        "reasoning": {"effort": "low"},
        "max_output_tokens": 5,
        "top_p": 0.5,
        "instructions": "Be brief.",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "extra_body": {"priority": 3, "seed": 7},
    }
    await gateway.client.responses.create(model="m", input="A fox?", **fields)
    made = await gateway.client.responses.create(**ASK, **fields)
    found = await ended(gateway.client, made.id)
    first, second = fleet.tokenizer.requests
    for request in (first, second):
        request.request_id = ""
    assert first == second
    assert found.status == "incomplete"


async def test_its_events_are_kept_and_followed_from_anywhere(fleet):
    gateway = await fleet.start()
    events = events_of(await gateway.http.post("/v1/responses", json=ASK | {"stream": True}))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:3]] == [
        *("response.created", "response.queued", "response.in_progress")
    ]
    last = events[-1]
    assert last["type"] == "response.completed"
    assert put_together(deepcopy(events)) == last["response"]["output"]
    response_id = last["response"]["id"]
    other = await fleet.start(works=False)
    assert await followed(other, response_id) == events
    assert await followed(other, response_id, 4) == events[5:]
    stored = (await other.http.get(f"/v1/responses/{response_id}")).json()
    assert ResponseAnswer.model_validate(stored, strict=True).model_dump() == last["response"]


async def test_a_browser_resumes_with_the_id_of_the_last_event(fleet):
    gateway = await fleet.start()
    asked = ASK | {"stream": True}
    answer = await gateway.http.post("/v1/responses", json=asked)
    events = events_of(answer)
    ids = [line.removeprefix("id: ") for line in answer.text.split("\n") if line.startswith("id: ")]
    response_id = events[-1]["response"]["id"]
    assert ids == [f"{response_id}:{number}" for number in range(len(events))]
    path, header = f"/v1/responses/{response_id}?stream=true&starting_after=1", {"Last-Event-ID": ids[4]}
    other = await fleet.start(works=False)
    assert events_of(await other.http.get(path, headers=header)) == events[5:]
    assert events_of(await other.http.post("/v1/responses", json=asked, headers=header)) == events[5:]
    for answer in (
        await other.http.get(f"/v1/responses/{response_id}?stream=true&starting_after={len(events) - 1}"),
        await other.http.get(f"/v1/responses/{response_id}?stream=true&starting_after=1000"),
        await other.http.post("/v1/responses", json=asked, headers={"Last-Event-ID": ids[-1]}),
    ):
        assert (answer.status_code, answer.content) == (204, b""), "it has seen all, and asks no more"
    for last, status in (("5", 400), (f"resp_{'0' * 32}:5", 404)):
        refused = await other.http.post("/v1/responses", json=asked, headers={"Last-Event-ID": last})
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, "Last-Event-ID")


async def test_who_follows_holds_nothing_of_the_input(fleet):
    fleet.tokenizer.generate, stopped = stops_after(WHOLE, 4)
    gateway = await fleet.start()
    made = await gateway.client.responses.create(**ASK | {"input": "A" * 2**20})
    await stopped.wait()
    other = await fleet.start(works=False)
    async with other.http.stream("GET", f"/v1/responses/{made.id}?stream=true") as answer:
        await anext(answer.aiter_lines())
        assert 0 < other.app.state.bodies.held <= SMALL


async def test_the_openai_client_follows_and_resumes(fleet):
    gateway = await fleet.start()
    seen = []
    async with await gateway.client.responses.create(**ASK, stream=True) as stream:
        async for event in stream:
            seen.append(event)
            if len(seen) == 4:
                break
    rest = await gateway.client.responses.retrieve(
        seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
    )
    seen += [event async for event in rest]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
    assert text == STORY == seen[-1].response.output_text


async def test_the_openai_client_waits_while_nothing_comes(fleet, monkeypatch):
    """It has seen ids, and keeps the last one: what keeps the stream alive must be no event to it."""
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.05)
    fleet.tokenizer.generate, stopped = stops_after(WHOLE, 4)
    first = await fleet.start()
    stream = await first.client.responses.create(**ASK, stream=True)
    following = asyncio.create_task(all_of(stream))
    await stopped.wait()
    await asyncio.sleep(0.3)
    fleet.tokenizer.generate = says(WHOLE)
    second = await fleet.start()
    await fleet.expire("response")
    second.app.state.jobs._runners[0].wake()
    assert (await following)[-1].response.output_text


async def all_of(stream):
    return [event async for event in stream]


@pytest.mark.parametrize("pieces", [0, 4, 9])
@pytest.mark.parametrize(("size", "seed"), [(2, None), (7, -1)])
async def test_another_gateway_goes_on_where_one_has_died(fleet, pieces, size, seed):
    """The texts come in other pieces than before. Nothing comes twice, and nothing is missing."""
    fleet.tokenizer.generate, stopped = stops_after(WHOLE, pieces)
    first = await fleet.start()
    thoughts = {"reasoning": {"summary": "auto"}, "include": [OPAQUE]}
    made = await first.client.responses.create(**ASK, **thoughts, tools=TOOLS, extra_body={"seed": seed})
    following = asyncio.create_task(followed(first, made.id))
    await stopped.wait()
    fleet.tokenizer.generate = says(WHOLE, size)
    second = await fleet.start()
    await fleet.expire("response")
    second.app.state.jobs._runners[0].wake()
    events = await following
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    output = events[-1]["response"]["output"]
    assert put_together(deepcopy(events)) == output
    assert (output[0]["summary"][0]["text"], bool(output[0]["encrypted_content"])) == ("Where?", True)
    kinds = [event["type"] for event in events]
    assert kinds.count("response.created") == kinds.count("response.in_progress") == 1
    assert len(fleet.tokenizer.requests) == 2
    seeds = {request.sampling.seed for request in fleet.tokenizer.requests}
    assert len(seeds) == 1, "the same draw"
    assert (await ended(first.client, made.id)).to_dict() == events[-1]["response"] | {
        "output": (await ended(second.client, made.id)).to_dict()["output"]
    }


async def test_a_gateway_that_stops_gives_its_work_to_others(fleet):
    fleet.tokenizer.generate, stopped = stops_after(STORY, 2)
    first = await fleet.start()
    made = await first.client.responses.create(**ASK)
    await stopped.wait()
    fleet.tokenizer.generate = tell
    await first.stop()
    second = await fleet.start()
    assert (await ended(second.client, made.id)).output_text == STORY


async def test_it_is_cancelled_wherever_it_is_made(fleet):
    fleet.tokenizer.generate, stopped = stops_after(STORY, 2)
    first, second = await fleet.start(), await fleet.start(works=False)
    made = await first.client.responses.create(**ASK)
    following = asyncio.create_task(followed(second, made.id))
    await stopped.wait()
    for _ in range(2):
        assert (await second.client.responses.cancel(made.id)).status == "cancelled"
    first.app.state.jobs._runners[0].wake()
    events = await following
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
    assert (await first.client.responses.retrieve(made.id)).status == "cancelled"
    # The gateway that worked at it notices with its next renewal at the latest.
    async with asyncio.timeout(60):
        await fleet.tokenizer.cancelled.wait()


async def test_what_cannot_be_cancelled(fleet):
    gateway, other = await fleet.start(), await fleet.start("b")
    plain = await gateway.client.responses.create(model="m", input="A fox?")
    with pytest.raises(openai.BadRequestError, match="background"):
        await gateway.client.responses.cancel(plain.id)
    with pytest.raises(openai.BadRequestError, match="background"):
        await gateway.client.responses.retrieve(plain.id, stream=True)
    made = await gateway.client.responses.create(**ASK)
    for asking in (other.client.responses.cancel, other.client.responses.retrieve):
        with pytest.raises(openai.NotFoundError):
            await asking(made.id)
    await ended(gateway.client, made.id)
    assert (await gateway.client.responses.cancel(made.id)).status == "completed"


async def test_a_deleted_response_ends(fleet):
    fleet.tokenizer.generate, stopped = stops_after(STORY, 2)
    gateway = await fleet.start()
    made = await gateway.client.responses.create(**ASK)
    await stopped.wait()
    await gateway.client.responses.delete(made.id)
    await gateway.stop()
    await fleet.start()
    async with asyncio.timeout(60):
        while (await fleet.line.execute(("EXISTS", f"{fleet.prefix}jobs:response:open")))[0]:
            await asyncio.sleep(0.01)


async def test_what_is_refused_at_once(fleet):
    gateway = await fleet.start(works=False)
    for fields, param in (
        ({"store": False}, "background"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"model": "none"}, "model"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ):
        with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refused:
            await gateway.client.responses.create(**ASK | fields)
        assert refused.value.param == param
    made = [await gateway.client.responses.create(**ASK) for _ in range(MOST)]
    with pytest.raises(openai.RateLimitError, match=f"At most {MOST}"):
        await gateway.client.responses.create(**ASK)
    with pytest.raises(openai.BadRequestError, match="not complete"):
        await gateway.client.responses.create(model="m", input="And?", previous_response_id=made[0].id)
    (kept,) = await fleet.line.execute(("ZCARD", f"{fleet.prefix}responses:all"))
    assert kept == MOST, "what was refused is not kept"


async def test_errors_of_the_services_are_the_response_s(fleet):
    async def refuse(request, context):
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "too long")
        yield

    fleet.tokenizer.generate = refuse
    gateway = await fleet.start()
    made = await gateway.client.responses.create(**ASK)
    found = await ended(gateway.client, made.id)
    assert (found.status, found.error.code, found.error.message) == (
        *("failed", "context_length_exceeded", "too long"),
    )
    events = await followed(gateway, made.id)
    assert [event["type"] for event in events] == [
        *("response.created", "response.queued", "response.failed")
    ]


async def test_what_is_too_much_at_the_moment_is_asked_again(fleet):
    times = 0

    async def later(request, context):
        nonlocal times
        times += 1
        if times == 1:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        yield TextChunk(prompt=PromptInfo(tokens=1))
        async for chunk in tell(request, context):
            yield chunk

    fleet.tokenizer.generate = later
    gateway = await fleet.start()
    made = await gateway.client.responses.create(**ASK)
    assert (await ended(gateway.client, made.id)).output_text == STORY
    assert times >= 2


async def test_deaths_without_progress_are_counted(fleet):
    async def nothing(request, context):
        asked.set()
        await asyncio.Event().wait()
        yield

    fleet.tokenizer.generate, asked = nothing, asyncio.Event()
    gateway = await fleet.start()
    made = await gateway.client.responses.create(**ASK)
    for _ in range(2):
        await asked.wait()
        asked.clear()
        await fleet.expire("response")
        await fleet.start()
    await asked.wait()
    key = f"{fleet.prefix}jobs:response:job:{made.id}"
    assert await fleet.line.execute(("HGET", key, "takes")) == [b"2"]


async def test_a_response_that_kills_its_gateways_is_given_up(fleet):
    gateway = await fleet.start(works=False)
    made = await gateway.client.responses.create(**ASK)
    await fleet.line.execute(("HSET", f"{fleet.prefix}jobs:response:job:{made.id}", "takes", MOST_TAKES))
    found = await ended((await fleet.start()).client, made.id)
    assert (found.status, found.error.code) == ("failed", "server_error")
    assert fleet.tokenizer.requests == []


@pytest.mark.parametrize("streamed", [False, True])
async def test_it_is_added_to_its_conversation(fleet, streamed):
    gateway = await fleet.start()
    made = await gateway.client.conversations.create(items=[{"role": "user", "content": "Hello."}])
    asked = await gateway.client.responses.create(**ASK, conversation=made.id, stream=streamed)
    if streamed:
        *_, last = [event async for event in asked]
        asked = last.response
    found = await ended(gateway.client, asked.id)
    assert (found.conversation.id, found.output_text) == (made.id, STORY)
    assert [one.content for one in fleet.tokenizer.requests[-1].chat.messages] == ["Hello.", "A fox?"]
    assert await conversation(gateway, made) == ["Hello.", "A fox?", STORY]


async def conversation(gateway, made):
    items = await gateway.client.conversations.items.list(made.id, order="asc")
    return [item.content[0].text for item in items.data]


async def test_it_is_added_once_though_gateways_die(fleet):
    fleet.tokenizer.generate, stopped = stops_after(STORY, 2)
    gateway = await fleet.start()
    made = await gateway.client.conversations.create()
    asked = await gateway.client.responses.create(**ASK, conversation=made.id)
    await stopped.wait()
    assert await conversation(gateway, made) == [], "nothing before it has ended"
    await fleet.expire("response")  # as if the gateway had died
    fleet.tokenizer.generate = says(STORY)
    other = await fleet.start()
    await ended(other.client, asked.id)
    assert await conversation(other, made) == ["A fox?", STORY]
    # A gateway that died between the answer and the end of its job has stored both, or neither.
    ids = await fleet.line.execute(("ZRANGE", f"{fleet.prefix}responses:order:a:{made.id}", 0, -1))
    queue, tenant = other.app.state.jobs._runners[0]._queue, "a"
    async with asyncio.timeout(60):
        while await queue.seize(asked.id, tenant) is not None:
            await asyncio.sleep(0.01)
    await queue.add(asked.id, Behalf(tenant, tenant, True))
    third = await fleet.start()
    async with asyncio.timeout(60):
        while (await fleet.line.execute(("EXISTS", f"{fleet.prefix}jobs:response:open")))[0]:
            await asyncio.sleep(0.01)
    assert await conversation(third, made) == ["A fox?", STORY]
    assert ids == await fleet.line.execute(("ZRANGE", f"{fleet.prefix}responses:order:a:{made.id}", 0, -1))


async def test_one_that_is_cancelled_is_not_added(fleet):
    fleet.tokenizer.generate, stopped = stops_after(STORY, 2)
    gateway = await fleet.start()
    made = await gateway.client.conversations.create()
    asked = await gateway.client.responses.create(**ASK, conversation=made.id)
    await stopped.wait()
    await gateway.client.responses.cancel(asked.id)
    assert await conversation(gateway, made) == []
