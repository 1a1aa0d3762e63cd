"""Batches: every line is answered once, whichever gateways die, stop or are slow."""

import asyncio
import json
from collections import Counter

import grpc
import openai
import pytest

from gateway.api.batches.batches import ENDED
from gateway.api.batches.schema import BatchObject
from gateway.http.counts import MAX_CONTAINERS
from gateway.jobs import batch as batch_module
from gateway.jobs.background import MOST_TAKES
from gateway.jobs.batch import MAX_ID, ByteSemaphore
from proto.sampling_pb2 import STOP
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta
from tests.unit.gateway.jobs.conftest import MOST

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"


async def echo(request, context):
    """Says the last message."""
    text = request.chat.messages[-1].content
    yield TextChunk(prompt=PromptInfo(tokens=1))
    yield TextChunk(deltas=[TextDelta(text=f"<{text}>", token_ids=[1], finish_reason=STOP)])


def line_of(name, url=CHAT, **fields):
    body = {"model": "m", "messages": [{"role": "user", "content": name}]} | fields
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


async def uploaded(gateway, lines, raw=None):
    data = raw if raw is not None else "\n\n".join(map(json.dumps, lines)).encode()
    return (await gateway.client.files.create(file=("in.jsonl", data), purpose="batch")).id


async def begun(gateway, lines, endpoint=CHAT, **fields):
    file_id = await uploaded(gateway, lines)
    return await gateway.client.batches.create(
        input_file_id=file_id, endpoint=endpoint, completion_window="24h", **fields
    )


async def ended(gateway, batch_id):
    """The batch when it does not change any more."""
    async with asyncio.timeout(60):
        while (found := await gateway.client.batches.retrieve(batch_id)).status not in ENDED:
            await asyncio.sleep(0.01)
    raw = (await gateway.http.get(f"/v1/batches/{batch_id}")).json()
    BatchObject.model_validate(raw, strict=True)
    return found


async def results(gateway, file_id):
    """What is in a file of results, by custom id. None has two."""
    if file_id is None:
        return {}
    text = (await gateway.client.files.content(file_id)).text
    lines = [json.loads(line) for line in text.splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    assert len({line["id"] for line in lines}) == len(lines)
    return found


def said(results):
    return {
        name: one["response"]["body"]["choices"][0]["message"]["content"] for name, one in results.items()
    }


async def counted(gateway, batch_id, completed):
    """Wait until so many lines of a batch have answers."""
    async with asyncio.timeout(60):
        while (await gateway.client.batches.retrieve(batch_id)).request_counts.completed < completed:
            await asyncio.sleep(0.01)


NAMES = [f"fox-{number}" for number in range(40)]


async def test_all_lines_are_answered(fleet):
    fleet.tokenizer.generate = echo
    gateway = await fleet.start()
    batch = await begun(gateway, map(line_of, NAMES), metadata={"a": "b"})
    assert (batch.status, batch.metadata, batch.output_file_id) == ("validating", {"a": "b"}, None)
    batch = await ended(gateway, batch.id)
    assert (batch.status, batch.errors, batch.error_file_id) == ("completed", None, None)
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (40, 40, 0)
    assert batch.completed_at >= batch.finalizing_at >= batch.in_progress_at >= batch.created_at
    found = await results(gateway, batch.output_file_id)
    assert said(found) == {name: f"<{name}>" for name in NAMES}
    assert {one["response"]["status_code"] for one in found.values()} == {200}
    assert len({one["response"]["request_id"] for one in found.values()}) == 40
    about = await gateway.client.files.retrieve(batch.output_file_id)
    assert (about.purpose, about.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    request = fleet.tokenizer.requests[0]
    assert (request.tenant, request.user, request.priority) == ("a", "batch", 2**31 - 1)


async def test_other_endpoints(fleet):
    gateway = await fleet.start()
    line = {"custom_id": "x", "method": "POST", "url": EMBEDDINGS, "body": {"model": "m", "input": "abc"}}
    batch = await ended(gateway, (await begun(gateway, [line], EMBEDDINGS)).id)
    (one,) = (await results(gateway, batch.output_file_id)).values()
    assert one["response"]["body"]["data"][0]["embedding"][0] == 3


async def test_a_batch_takes_no_room_of_stored_responses(fleet):
    """Unless a line says so."""
    gateway = await fleet.start()
    lines = [
        line_of(name, "/v1/responses") | {"body": {"model": "m", "input": "A"} | more}
        for name, more in (("a", {}), ("b", {"store": True}))
    ]
    batch = await ended(gateway, (await begun(gateway, lines, "/v1/responses")).id)
    found = await results(gateway, batch.output_file_id)
    ids = [found[name]["response"]["body"]["id"] for name in "ab"]
    stored = [(await gateway.http.get(f"/v1/responses/{one}")).status_code for one in ids]
    assert stored == [404, 200]


async def test_lines_that_fail_have_a_file_of_their_own(fleet):
    async def some(request, context):
        if request.chat.messages[-1].content == "long":
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "too long")
        async for chunk in echo(request, context):
            yield chunk

    fleet.tokenizer.generate = some
    gateway = await fleet.start()
    lines = [line_of("a"), line_of("long"), line_of("hot", temperature=-1), line_of("b")]
    batch = await ended(gateway, (await begun(gateway, lines)).id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 2, 2)
    assert said(await results(gateway, batch.output_file_id)) == {"a": "<a>", "b": "<b>"}
    failed = await results(gateway, batch.error_file_id)
    codes = {name: one["response"]["body"]["error"]["code"] for name, one in failed.items()}
    assert codes == {"long": "context_length_exceeded", "hot": "invalid_value"}
    assert {one["response"]["status_code"] for one in failed.values()} == {400}


async def test_what_is_too_much_at_the_moment_is_asked_again(fleet):
    tries = 0

    async def later(request, context):
        nonlocal tries
        tries += 1
        if tries == 1:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        async for chunk in echo(request, context):
            yield chunk

    fleet.tokenizer.generate = later
    gateway = await fleet.start()
    batch = await ended(gateway, (await begun(gateway, [line_of("a")])).id)
    assert said(await results(gateway, batch.output_file_id)) == {"a": "<a>"}
    assert tries >= 2


@pytest.mark.parametrize("dies", [True, False])
async def test_another_gateway_goes_on(fleet, dies):
    """Some lines are done, and some are under way, when the first gateway dies or is stopped."""
    stuck = asyncio.Event()

    async def some(request, context):
        if int(request.chat.messages[-1].content.partition("-")[2]) > 9:
            stuck.set()
            await asyncio.Event().wait()
        async for chunk in echo(request, context):
            yield chunk

    fleet.tokenizer.generate = some
    first = await fleet.start()
    made = await begun(first, map(line_of, NAMES))
    await counted(first, made.id, 10)
    await stuck.wait()
    partly = await results(first, (await first.client.batches.retrieve(made.id)).output_file_id)
    assert said(partly) == {name: f"<{name}>" for name in NAMES[:10]}, "results come as they are there"
    fleet.tokenizer.generate = echo
    if dies:
        await fleet.expire("batch")
    else:
        await first.stop()
    second = await fleet.start()
    batch = await ended(second, made.id)
    assert (batch.status, batch.request_counts.completed) == ("completed", 40)
    assert said(await results(second, batch.output_file_id)) == {name: f"<{name}>" for name in NAMES}
    asked = Counter(request.chat.messages[-1].content for request in fleet.tokenizer.requests)
    assert [asked[name] for name in NAMES[:10]] == [1] * 10, "what had results is not asked again"


async def test_two_that_work_at_one_batch_write_each_line_once(fleet):
    """One has lost the lease and does not know it yet."""
    go_on = asyncio.Event()

    async def late(request, context):
        await go_on.wait()
        async for chunk in echo(request, context):
            yield chunk

    fleet.tokenizer.generate = late
    first = await fleet.start()
    made = await begun(first, map(line_of, NAMES[:8]))
    async with asyncio.timeout(60):
        while len(fleet.tokenizer.requests) < 8:
            await asyncio.sleep(0.01)
    await fleet.expire("batch")
    second = await fleet.start()
    async with asyncio.timeout(60):
        while len(fleet.tokenizer.requests) < 16:
            await asyncio.sleep(0.01)
    go_on.set()
    batch = await ended(second, made.id)
    assert batch.request_counts.completed == 8
    assert said(await results(second, batch.output_file_id)) == {name: f"<{name}>" for name in NAMES[:8]}


async def test_a_batch_is_cancelled_wherever_it_is_made(fleet):
    stuck = asyncio.Event()

    async def some(request, context):
        if request.chat.messages[-1].content == "stuck":
            stuck.set()
            await asyncio.Event().wait()
        async for chunk in echo(request, context):
            yield chunk

    fleet.tokenizer.generate = some
    first, second = await fleet.start(), await fleet.start(works=False)
    made = await begun(first, [line_of("a"), line_of("stuck")])
    await stuck.wait()
    await counted(first, made.id, 1)
    for _ in range(2):
        assert (await second.client.batches.cancel(made.id)).status == "cancelled"
    batch = await ended(first, made.id)
    assert batch.cancelled_at >= batch.created_at
    assert said(await results(first, batch.output_file_id)) == {"a": "<a>"}
    await begun(first, [line_of("b")])  # there is room for others


async def test_a_batch_that_is_not_done_in_time_expires(fleet, stores, monkeypatch):
    first = await fleet.start(works=False)
    made = await begun(first, map(line_of, NAMES[:3]))
    batch = await stores.batches.get("a", made.id)
    batch["expires_at"] = batch["created_at"]
    await stores.batches.put("a", batch)
    batch = await ended(await fleet.start(), made.id)
    assert (batch.status, batch.request_counts.failed) == ("expired", 3)
    failed = await results(first, batch.error_file_id)
    assert {one["error"]["code"] for one in failed.values()} == {"batch_expired"}
    assert failed.keys() == set(NAMES[:3])
    assert fleet.tokenizer.requests == []


async def test_half_a_character_is_one_of_a_line_too(fleet):
    fleet.tokenizer.generate = echo
    gateway = await fleet.start()
    file_id = await uploaded(gateway, (), json.dumps(line_of("\ud83d") | {"custom_id": "a"}).encode())
    made = await gateway.client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")
    batch = await ended(gateway, made.id)
    assert said(await results(gateway, batch.output_file_id)) == {"a": "<\ufffd>"}


BAD = [
    (b"{", "invalid_json_line", None),
    (b"[1]", "invalid_json_line", None),
    (json.dumps(line_of("x") | {"method": "GET"}).encode(), "invalid_method", "method"),
    (json.dumps(line_of("x", url=EMBEDDINGS)).encode(), "mismatched_url", "url"),
    (json.dumps(line_of("x") | {"custom_id": 7}).encode(), "missing_required_parameter", "custom_id"),
    (json.dumps(line_of("x" * (MAX_ID + 1))).encode(), "invalid_value", "custom_id"),
    (json.dumps(line_of("x") | {"body": 7}).encode(), "missing_required_parameter", "body"),
    (json.dumps(line_of("x", stream=True)).encode(), "invalid_value", "body.stream"),
    (json.dumps(line_of("first")).encode(), "duplicate_custom_id", "custom_id"),
    (json.dumps(line_of("x", stop=[{}] * MAX_CONTAINERS)).encode(), "invalid_value", None),
]


@pytest.mark.parametrize(("wrong", "code", "param"), BAD)
async def test_a_wrong_line_fails_the_batch_before_anything_is_asked(fleet, wrong, code, param):
    gateway = await fleet.start()
    file_id = await uploaded(gateway, (), json.dumps(line_of("first")).encode() + b"\n\n" + wrong + b"\n")
    made = await gateway.client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")
    batch = await ended(gateway, made.id)
    assert batch.status == "failed"
    (problem,) = batch.errors.data
    assert (problem.code, problem.param, problem.line) == (code, param, 3)
    assert fleet.tokenizer.requests == []


async def test_lines_that_are_asked_at_once_have_no_more_room_than_a_body():
    """Each waits for those before it; one that is larger than all room has it for itself."""
    room, held = ByteSemaphore(10), []

    async def hold(size):
        await room.acquire(size)
        held.append(size)

    tasks = [asyncio.create_task(hold(size)) for size in (6, 4, 5, 1, 30, 2)]
    released = [((), [6, 4]), ((6,), [6, 4, 5, 1]), ((4, 5), [6, 4, 5, 1]), ((1,), [6, 4, 5, 1, 30])]
    for sizes, expected in released:
        for size in sizes:
            room.release(size)
        await asyncio.sleep(0.01)
        assert held == expected
    leaves = asyncio.create_task(hold(3))
    await asyncio.sleep(0.01)
    leaves.cancel()
    room.release(30)
    await asyncio.gather(*tasks)
    assert held[-2:] == [30, 2]


async def test_no_room_is_lost_with_a_batch_that_is_cancelled(fleet, monkeypatch):
    """Also of lines that are given up before they have begun."""
    asked, rooms = asyncio.Event(), []
    make = batch_module.ByteSemaphore
    monkeypatch.setattr(batch_module, "ByteSemaphore", lambda most: (rooms.append(make(most)), rooms[-1])[1])

    async def never(request, context):
        asked.set()
        await asyncio.Event().wait()
        yield

    fleet.tokenizer.generate = never
    gateway = await fleet.start()
    made = await begun(gateway, map(line_of, NAMES))
    await asked.wait()
    await gateway.client.batches.cancel(made.id)
    async with asyncio.timeout(60):
        while any(room.used for room in rooms):
            await asyncio.sleep(0.01)
    assert rooms


async def test_too_many_lines(fleet, monkeypatch):
    monkeypatch.setattr(batch_module, "MAX_LINES", 2)
    gateway = await fleet.start()
    batch = await ended(gateway, (await begun(gateway, map(line_of, NAMES))).id)
    assert [problem.code for problem in batch.errors.data] == ["too_many_lines"]


async def test_what_is_refused_at_once(fleet):
    gateway, other = await fleet.start(works=False), await fleet.start("b", works=False)
    file_id = await uploaded(gateway, [line_of("x")])

    async def create(who, **fields):
        asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"} | fields
        return await who.client.batches.create(**asked)

    for who, fields in (
        (other, {}),
        (gateway, {"endpoint": "/v1/x"}),
        (gateway, {"completion_window": "1h"}),
    ):
        with pytest.raises(openai.BadRequestError):
            await create(who, **fields)
    made = [await create(gateway) for _ in range(MOST)]
    with pytest.raises(openai.RateLimitError):
        await create(gateway)
    page = await gateway.client.batches.list(limit=2)
    assert [one.id for one in page.data] == [made[2].id, made[1].id]
    assert [one.id async for one in page] == [one.id for one in reversed(made)]
    assert [one.id async for one in await other.client.batches.list()] == []
    for asking in (other.client.batches.retrieve, other.client.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            await asking(made[0].id)


@pytest.mark.parametrize("in_time", [True, False])
async def test_no_room_for_results(fleet, stores, in_time):
    fleet.tokenizer.generate = echo
    gateway = await fleet.start(works=False)
    made = await begun(gateway, [line_of("a")])
    if not in_time:
        batch = await stores.batches.get("a", made.id)
        await stores.batches.put("a", batch | {"expires_at": batch["created_at"]})
    stores.batches.files.most = (1, 1)
    batch = await ended(await fleet.start(), made.id)
    assert batch.status == "failed"
    assert [problem.code for problem in batch.errors.data] == ["insufficient_storage"]


async def test_an_input_that_is_deleted_meanwhile(fleet):
    gateway = await fleet.start(works=False)
    made = await begun(gateway, [line_of("a")])
    await gateway.client.files.delete(made.input_file_id)
    batch = await ended(await fleet.start(), made.id)
    assert [problem.code for problem in batch.errors.data] == ["empty_file"]


async def test_a_batch_that_kills_its_gateways_is_given_up(fleet):
    gateway = await fleet.start(works=False)
    made = await begun(gateway, [line_of("a")])
    await fleet.line.execute(("HSET", f"{fleet.prefix}jobs:batch:job:{made.id}", "takes", MOST_TAKES))
    assert (await ended(await fleet.start(), made.id)).status == "failed"
    assert fleet.tokenizer.requests == []


async def test_who_drains_begins_no_more_lines(fleet):
    go_on = asyncio.Event()

    async def late(request, context):
        await go_on.wait()
        async for chunk in echo(request, context):
            yield chunk

    fleet.tokenizer.generate = late
    first = await fleet.start()
    made = await begun(first, map(line_of, NAMES))
    async with asyncio.timeout(60):
        while len(fleet.tokenizer.requests) < 16:
            await asyncio.sleep(0.01)
    first.app.state.jobs.drain()
    go_on.set()
    await counted(first, made.id, 16)
    second = await fleet.start()
    batch = await ended(second, made.id)
    assert batch.request_counts.completed == 40
    assert len(fleet.tokenizer.requests) == 40
