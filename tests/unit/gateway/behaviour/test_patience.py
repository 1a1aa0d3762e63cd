"""Requests with more parts than may wait: those that find no room come back, if any part has found some."""

import asyncio
import json
import time

import grpc
import httpx
import pytest

from gateway.app import Options
from ops.runtime.metric_names import REFUSED
from ops.runtime.metrics import METRICS
from proto.sampling_pb2 import STOP
from proto.tokenizer_pb2 import TextChunk, TextDelta
from tests.unit.gateway.conftest import app_of

ROOM = 2
PARTS = ["a", "b", "c", "d", "e"]


class Line:
    """Takes `ROOM` calls at once, and refuses what comes besides for a second."""

    def __init__(self, then):
        self.inside = self.refused = 0
        self.taken_again = False
        """A place that gets free is taken at once, by somebody else."""
        self._then = then

    async def enter(self, context):
        if self.inside >= ROOM:
            self.refused += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", (("quire-retry-after", "1"),))
        self.inside += 1
        while self.refused < len(PARTS) - ROOM:  # the others come meanwhile, however slow the machine is
            await asyncio.sleep(0.001)

    def leave(self):
        if not self.taken_again:
            self.inside -= 1

    async def embed(self, request, context):
        await self.enter(context)
        try:
            return await self._then(request, context)
        finally:
            self.leave()

    async def generate(self, request, context):
        await self.enter(context)
        try:
            async for chunk in self._then(request, context):
                yield chunk
        finally:
            self.leave()


async def test_prompts(gateway):
    line = Line(gateway.tokenizer.generate)
    gateway.tokenizer.generate = line.generate
    client = gateway.openai()
    answer = await client.completions.create(model="m", prompt=PARTS, max_tokens=2)
    assert [choice.text for choice in answer.choices] == ["Once upon"] * len(PARTS)
    assert line.refused >= len(PARTS) - ROOM


async def test_texts(gateway):
    line = Line(gateway.tokenizer.embed)
    gateway.tokenizer.embed = line.embed
    answer = await gateway.openai().embeddings.create(model="m", input=PARTS)
    assert len(answer.data) == len(PARTS)
    assert line.refused >= len(PARTS) - ROOM


@pytest.mark.parametrize("path", ["completions", "embeddings"])
async def test_where_there_is_no_room_at_all(gateway, path):
    line = Line(None)
    line.inside = ROOM
    gateway.tokenizer.generate, gateway.tokenizer.embed = line.generate, line.embed
    ask = {"model": "m", "prompt" if path == "completions" else "input": PARTS}
    refused, before = METRICS.counter(REFUSED, "m"), METRICS.counter(REFUSED, "m").value
    answer = await gateway.http.post(f"/v1/{path}", json=ask)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert refused.value == before + 1


def hasty(gateway, seconds=0.3):
    """A client of the same gateway, where answers may take a moment unless a request says otherwise."""
    transport = httpx.ASGITransport(app_of(gateway.backend, options=Options(answer_timeout=seconds)))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)


async def endless(request, context):
    """A text that rolls on: no token of it is the last one."""
    token = len(request.resumed[0].token_ids) if request.resumed else 0
    while True:
        yield TextChunk(deltas=[TextDelta(text="a", token_ids=[token])])
        await asyncio.sleep(0.01)


async def test_an_answer_without_a_time_of_its_own_has_an_end(gateway):
    gateway.tokenizer.generate = endless
    ask = {"model": "m", "prompt": "A", "rolling_context": True}
    async with hasty(gateway) as http:
        collected = await http.post("/v1/completions", json=ask | {"max_tokens": 2**19})
    assert collected.status_code == 504
    for seconds in (0.3, 3, 30):  # longer for a machine that is too slow to begin sooner
        async with hasty(gateway, seconds) as http:
            streamed = await http.post("/v1/completions", json=ask | {"stream": True})
        *texts, last = streamed.text.strip().split("\n\n")
        if len(texts) > 1:
            break
    assert (streamed.status_code, len(texts) > 1) == (200, True)
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["type"], error["param"]) == ("timeout_error", "timeout")
    await asyncio.wait_for(gateway.tokenizer.cancelled.wait(), 60)


async def test_an_embedding_without_a_time_of_its_own_has_an_end(gateway):
    async def forever(request, context):
        await asyncio.Event().wait()

    gateway.tokenizer.embed = forever
    async with hasty(gateway) as http:
        assert (await http.post("/v1/embeddings", json={"model": "m", "input": "A"})).status_code == 504


async def test_a_request_may_ask_for_more_time(gateway):
    async def slowly(request, context):
        await asyncio.sleep(0.6)
        yield TextChunk(deltas=[TextDelta(text="a", token_ids=[1], finish_reason=STOP)])

    gateway.tokenizer.generate = slowly
    ask = {"model": "m", "prompt": "A", "timeout": 60}
    async with hasty(gateway) as http:
        assert (await http.post("/v1/completions", json=ask)).status_code == 200


async def test_patience_ends_with_the_time(gateway):
    line = Line(gateway.tokenizer.generate)
    line.inside, line.taken_again = ROOM - 1, True
    gateway.tokenizer.generate = line.generate
    began = time.monotonic()
    answer = await gateway.http.post("/v1/completions", json={"model": "m", "prompt": PARTS, "timeout": 0.5})
    assert answer.status_code == 504
    assert time.monotonic() - began < 60
