"""Requests with more parts than may wait: those that find no room come back, if any part has found some."""

import asyncio
import time

import grpc
import pytest

ROOM = 2
PARTS = ["a", "b", "c", "d", "e"]


class Line:
    """Takes `ROOM` calls at once, and refuses what comes besides for a second."""

    def __init__(self, then):
        self.inside = self.refused = 0
        self._then = then

    async def enter(self, context):
        if self.inside >= ROOM:
            self.refused += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", (("quire-retry-after", "1"),))
        self.inside += 1
        await asyncio.sleep(0.2)

    async def embed(self, request, context):
        await self.enter(context)
        try:
            return await self._then(request, context)
        finally:
            self.inside -= 1

    async def generate(self, request, context):
        await self.enter(context)
        try:
            async for chunk in self._then(request, context):
                yield chunk
        finally:
            self.inside -= 1


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
    answer = await gateway.http.post(f"/v1/{path}", json=ask)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


async def test_patience_ends_with_the_time(gateway):
    line = Line(gateway.tokenizer.generate)
    line.inside = ROOM - 1
    gateway.tokenizer.generate = line.generate
    began = time.monotonic()
    answer = await gateway.http.post("/v1/completions", json={"model": "m", "prompt": PARTS, "timeout": 0.5})
    assert answer.status_code == 504
    assert time.monotonic() - began < 5
