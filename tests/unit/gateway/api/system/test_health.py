"""How the gateway is."""

import asyncio

import pytest


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/ping"])
async def test_names_of_readiness(gateway, path):
    answer = await gateway.http.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "models": ["m"]})
    assert (await gateway.http.post("/ping")).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/ping"])
async def test_without_a_model_it_is_not_ready(gateway, path):
    gateway.backend.lease_list = []
    answer = await gateway.http.get(path)
    assert answer.status_code == 503
    assert answer.json()["missing"] == ["tokenizer", "scheduler", "worker"]


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/ping"])
async def test_it_is_not_ready_while_no_worker_gets_on(gateway, path):
    gateway.backend.lease_list[1].info["stalled"] = 1
    answer = await gateway.http.get(path)
    assert answer.status_code == 503
    assert answer.json() == {"status": "not ready", "models": [], "missing": ["progress of m"]}
    assert (await gateway.http.get("/health/live")).status_code == 200


async def test_the_load_is_what_has_not_been_answered(gateway):
    asked, answered = asyncio.Event(), asyncio.Event()

    async def wait(request, context):
        asked.set()
        await answered.wait()
        async for chunk in plain(request, context):
            yield chunk

    async def load():
        return (await gateway.http.get("/load")).json()["server_load"]

    plain, gateway.tokenizer.generate = gateway.tokenizer.generate, wait
    assert await load() == 0
    asking = asyncio.ensure_future(
        gateway.http.post("/v1/completions", json={"model": "m", "prompt": ["A", "B"]})
    )
    await asked.wait()
    assert await load() == 1
    answered.set()
    assert (await asking).status_code == 200
    assert await load() == 0
