"""Who follows background responses: one tenant leaves places to others."""

import asyncio

import openai
import pytest

from gateway.followers import Followers
from tests.unit.gateway.jobs.test_background import ASK


async def test_one_tenant_does_not_take_all_places_to_follow_at(fleet, stores):
    """Each follower takes a connection to Redis, and a part of each event's time."""
    gateway, other = await fleet.start(works=False), await fleet.start("b", works=False)
    stores.responses.followers = Followers(3)
    made, its = [await one.client.responses.create(**ASK) for one in (gateway, other)]
    async with gateway.http.stream("GET", f"/v1/responses/{made.id}?stream=true") as first:
        assert first.status_code == 200
        refused = await gateway.http.get(f"/v1/responses/{made.id}?stream=true")
        assert refused.status_code == 429
        with pytest.raises(openai.RateLimitError):
            await gateway.client.responses.create(**ASK, stream=True)
        async with other.http.stream("GET", f"/v1/responses/{its.id}?stream=true") as second:
            assert second.status_code == 200
    (kept,) = await fleet.line.execute(("ZCARD", f"{fleet.prefix}responses:all"))
    assert kept == 2, "what was refused is not kept"


async def test_a_response_that_could_not_be_followed_is_not_made(fleet, stores, monkeypatch):
    """Another one, which is being stored, has the place."""
    gateway = await fleet.start(works=False)
    stores.responses.followers = Followers(3)
    put, storing, go_on = stores.responses.put, asyncio.Event(), asyncio.Event()

    async def slow(*arguments):
        assert not storing.is_set(), "what is refused is not stored"
        storing.set()
        await go_on.wait()
        await put(*arguments)

    monkeypatch.setattr(stores.responses, "put", slow)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        first = tasks.create_task(gateway.client.responses.create(**ASK, stream=True))
        await storing.wait()
        with pytest.raises(openai.RateLimitError):
            await gateway.client.responses.create(**ASK, stream=True)
        go_on.set()
        stream = await first
        assert (await anext(aiter(stream))).type == "response.created"
        await stream.close()
