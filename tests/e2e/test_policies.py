"""Policies and limits over real processes, from the body of a request to the order of the answers."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support.asking import attempts
from tests.support.deployment import Deployment, running

GOOD: dict[str, Any] = {
    "model": "quire-tiny",
    "prompt": "Once upon a time",
    "max_tokens": 60,
    "temperature": 0,
    "ignore_eos": True,
}
LONG = GOOD | {"max_tokens": 400}


class Asker:
    """Asks in the background, and notes in which order answers come."""

    def __init__(self, deployment: Deployment) -> None:
        self.http = httpx.AsyncClient(base_url=deployment.url, timeout=60)
        self.ended: list[str] = []

    async def ask(self, name: str, **fields: Any) -> httpx.Response:
        response = await self.http.post("/v1/completions", json=GOOD | fields)
        self.ended.append(name)
        return response

    async def begin(self, name: str, **fields: Any) -> "asyncio.Task[httpx.Response]":
        """Returns once the request has had the time to reach the scheduler."""
        task = asyncio.create_task(self.ask(name, **fields))
        await asyncio.sleep(0.1)
        return task


def one_slot(redis_server: RedisServer, directory: Path, **settings: str) -> Iterator[Deployment]:
    yield from running(redis_server, directory, QUIRE_MAX_SLOTS="1", **settings)


@pytest.fixture
def by_priority(redis_server: RedisServer, tmp_path: Path) -> Iterator[Deployment]:
    yield from one_slot(redis_server, tmp_path, QUIRE_POLICY="priority")


@pytest.fixture
def one_at_a_time(redis_server: RedisServer, tmp_path: Path) -> Iterator[Deployment]:
    yield from one_slot(redis_server, tmp_path)


@pytest.fixture(scope="module")
def limited(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from one_slot(redis_server, tmp_path_factory.mktemp("limited"), QUIRE_MAX_WAITING_REQUESTS="2")


async def test_a_lower_priority_number_comes_first(by_priority: Deployment) -> None:
    asker = Asker(by_priority)
    alone = (await asker.ask("alone", **LONG)).json()["choices"]
    for attempt in attempts():
        low = await asker.begin("low", **LONG, priority=9)
        tasks = [await asker.begin(name, priority=level) for name, level in (("middle", 5), ("high", 1))]
        await asyncio.gather(low, *tasks)
        attempt.hit = asker.ended[-1] == "low"  # preempted, although it came first
        assert low.result().json()["choices"] == alone


async def test_one_tenant_does_not_hold_up_the_other(one_at_a_time: Deployment) -> None:
    for attempt in attempts():
        asker = Asker(one_at_a_time)
        flood = [asyncio.create_task(asker.ask("flood", user="flood")) for _ in range(20)]
        await asyncio.sleep(0.1)
        await asker.ask("other", user="other")
        attempt.hit = len(asker.ended) < 15
        await asyncio.gather(*flood)


async def test_who_is_refused_is_told_when_to_come_back(limited: Deployment) -> None:
    asker = Asker(limited)
    for attempt in attempts():
        running = await asker.begin("running", **LONG)
        waiting = [await asker.begin("waiting") for _ in range(2)]
        refused = await asker.ask("refused")
        answers = await asyncio.gather(running, *waiting)
        # The scheduler may not have begun the first when the third comes: then that is one too many.
        attempt.hit = [answer.status_code for answer in (*answers, refused)] == [200, 200, 200, 429]
    assert int(refused.headers["retry-after"]) >= 1
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
    assert (await asker.ask("again")).status_code == 200


async def test_an_answer_that_takes_too_long_ends(limited: Deployment) -> None:
    asker = Asker(limited)
    running = await asker.begin("running", **LONG)
    begun = time.monotonic()
    late = await asker.ask("late", **LONG, timeout=0.05)
    assert late.status_code == 504
    assert time.monotonic() - begun < 60
    assert (await running).status_code == 200
