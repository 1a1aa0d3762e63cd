"""One tenant floods the gateway: another is answered at once, and no service gets more calls than it has."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from gateway.api.openai import chat, completions
from gateway.api.pooling import embeddings
from gateway.upstream import admission, generator
from tests.unit.gateway.conftest import WORDS, app_of

FLOODS = 17
TENANTS = ["north", "south", *(f"flood-{number}" for number in range(FLOODS))]
KEYS = {f"sk-{tenant}-{20 * 'k'}": tenant for tenant in TENANTS}
NORTH, SOUTH, *FLOOD = ({"Authorization": f"Bearer {key}"} for key in KEYS)
CAPACITY = 32
ASK = {"model": "m", "prompt": "A", "max_tokens": 2}


class Held:
    """A tokenizer that answers south, and holds the calls of others until it is told: some have begun."""

    def __init__(self, tokenizer: Any) -> None:
        self.enough = asyncio.Event()
        self.calls = self.most = 0
        self._tell = tokenizer.generate
        tokenizer.generate = self.generate

    async def generate(self, request: Any, context: Any) -> Any:
        self.calls += 1
        self.most = max(self.most, self.calls)
        try:
            if request.tenant == "north":
                await self.enough.wait()
            left = 3 if request.tenant.startswith("flood") else -1
            async for chunk in self._tell(request, context):
                yield chunk
                left -= 1
                if not left:
                    await self.enough.wait()
        finally:
            self.calls -= 1

    async def until(self, calls: int) -> None:
        async with asyncio.timeout(60):
            while self.calls < calls:
                await asyncio.sleep(0.01)


@pytest.fixture
def held(tokenizer: Any) -> Held:
    return Held(tokenizer)


@pytest.fixture
def app(backend: Any, held: Held, keys_of: Any) -> Any:
    tokenizers, schedulers = backend.lease_list
    info = {"capacity": CAPACITY}
    backend.lease_list = [
        replace(tokenizers, info=tokenizers.info | info),
        replace(schedulers, info=schedulers.info | info),
    ]
    return app_of(backend, keys_of(KEYS))


@pytest.fixture
def http(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=60)


def asking(http: httpx.AsyncClient, headers: dict[str, str], **fields: Any) -> "asyncio.Task[httpx.Response]":
    return asyncio.ensure_future(http.post("/v1/completions", headers=headers, json=ASK | fields))


async def statuses(flood: list["asyncio.Task[httpx.Response]"]) -> list[int]:
    return sorted(answer.status_code for answer in await asyncio.gather(*flood))


@pytest.mark.parametrize("users", [1, 300])
async def test_a_flood_of_streams(http: httpx.AsyncClient, held: Held, users: int) -> None:
    flood = [asking(http, NORTH, stream=True, user=f"user-{number % users}") for number in range(300)]
    await held.until(CAPACITY * 2 // 5)
    async with asyncio.timeout(60):  # without places of its own it would wait for the flood to end
        for _ in range(5):
            assert (await http.post("/v1/completions", headers=SOUTH, json=ASK)).status_code == 200
    assert not any(task.done() for task in flood)
    held.enough.set()
    assert await statuses(flood) == [200] * 300, "north gets all of its answers, in its turns"
    assert held.most <= CAPACITY


async def test_beyond_the_room_to_wait_in_the_answer_is_429_at_once(
    http: httpx.AsyncClient, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_WAITING", 32)
    flood = [asking(http, NORTH) for _ in range(60)]
    await held.until(CAPACITY * 2 // 5)
    async with asyncio.timeout(60):  # if it waited for a place, it would wait for the flood to end
        refused = await http.post("/v1/completions", headers=NORTH, json=ASK)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
    assert (await http.post("/v1/completions", headers=SOUTH, json=ASK)).status_code == 200
    held.enough.set()
    found = await statuses(flood)
    assert set(found) == {200, 429}
    assert (await http.post("/v1/completions", headers=NORTH, json=ASK)).status_code == 200


@pytest.mark.parametrize(
    ("endpoint", "makes", "path", "ask"),
    [
        (completions, "completion_requests", "/v1/completions", ASK),
        (chat, "chat_requests", "/v1/chat/completions", {"messages": [{"role": "user", "content": "A"}]}),
        (embeddings, "embedding_requests", "/v1/embeddings", {"input": "A"}),
    ],
    ids=["completions", "chat", "embeddings"],
)
async def test_nothing_is_made_for_a_request_that_is_refused(
    http: httpx.AsyncClient,
    held: Held,
    monkeypatch: pytest.MonkeyPatch,
    endpoint: Any,
    makes: str,
    path: str,
    ask: dict[str, Any],
) -> None:
    monkeypatch.setattr(admission, "MAX_WAITING", 32)
    flood = [asking(http, NORTH) for _ in range(60)]
    await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)  # the first that is refused
    made: list[Any] = []
    monkeypatch.setattr(endpoint, makes, lambda *arguments: made.append(arguments))
    assert (await http.post(path, headers=NORTH, json={"model": "m", **ask})).status_code == 429
    assert made == []
    held.enough.set()
    await statuses(flood)


async def test_floods_of_many_tenants_without_end_give_way_and_go_on_later(
    http: httpx.AsyncClient, held: Held, tokenizer: Any
) -> None:
    ask = {"max_tokens": 8, "prompt": ["A"] * 4, "stream": True, "return_token_ids": True}
    flood = [asking(http, headers, **ask) for headers in FLOOD for _ in range(4)]
    await held.until(CAPACITY)
    async with asyncio.timeout(60):
        answers = [await http.post("/v1/completions", headers=SOUTH, json=ASK) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert not any(task.done() for task in flood)
    held.enough.set()
    for answer in await asyncio.gather(*flood):
        *events, done, rest = answer.text.split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
        for prompt in range(4):
            of_prompt = [choice for choice in choices if choice["index"] == prompt]
            tokens = [token for choice in of_prompt for token in choice["token_ids"]]
            assert "".join(choice["text"] for choice in of_prompt) == "".join(WORDS[:8])
            assert tokens == list(range(100, 108))
    assert any(request.resumed for request in tokenizer.requests), "some were paused after they had begun"


async def test_who_leaves_while_paused_leaves_nothing_behind(
    app: Any, http: httpx.AsyncClient, held: Held, tokenizer: Any
) -> None:
    ask = {"stream": True, "max_tokens": 8, "prompt": ["A"] * 4}
    flood = [asking(http, headers, **ask) for headers in FLOOD for _ in range(4)]
    await held.until(CAPACITY)
    assert (await http.post("/v1/completions", headers=SOUTH, json=ASK)).status_code == 200
    for task in flood:
        task.cancel()
    await asyncio.wait(flood)
    (found,) = app.state.generator._admissions.values()
    async with asyncio.timeout(60):
        while not found.idle:
            await asyncio.sleep(0.01)


async def test_a_paused_answer_runs_out_of_time(http: httpx.AsyncClient, held: Held) -> None:
    for seconds in (1.5, 15, 50):  # longer for a machine that is too slow to begin them all sooner
        fields = {"prompt": ["A"] * 4, "max_tokens": 8, "timeout": seconds}
        flood = [asking(http, headers, **fields) for headers in FLOOD]
        filled = asyncio.ensure_future(held.until(CAPACITY))
        await asyncio.wait([filled, *flood], return_when=asyncio.FIRST_COMPLETED)
        if filled.done():
            break
        filled.cancel()
        await asyncio.wait(flood)
    await filled
    assert (await http.post("/v1/completions", headers=SOUTH, json=ASK)).status_code == 200
    assert await statuses(flood) == [504] * FLOODS


async def test_many_prompts_in_one_request_are_many_calls(http: httpx.AsyncClient, held: Held) -> None:
    flood = [asking(http, NORTH, prompt=["A"] * 16) for _ in range(10)]
    await held.until(16)
    assert (await http.post("/v1/completions", headers=SOUTH, json=ASK)).status_code == 200
    assert held.most <= CAPACITY
    held.enough.set()
    assert await statuses(flood) == [200] * 10


async def test_who_waits_for_a_place_runs_out_of_time(http: httpx.AsyncClient, held: Held) -> None:
    flood = [asking(http, NORTH) for _ in range(40)]
    await held.until(CAPACITY * 2 // 5)
    answer = await http.post("/v1/completions", headers=NORTH, json=ASK | {"timeout": 0.05})
    assert (answer.status_code, answer.json()["error"]["param"]) == (504, "timeout")
    held.enough.set()
    assert await statuses(flood) == [200] * 40


async def test_a_gateway_that_stops_leaves_nobody_waiting(
    app: Any, http: httpx.AsyncClient, held: Held
) -> None:
    flood = [asking(http, NORTH) for _ in range(40)]
    await held.until(CAPACITY * 2 // 5)
    app.state.generator.stop()
    assert await statuses(flood) == [503] * 40


async def test_who_waits_for_a_place_at_a_lost_model_is_told(
    app: Any, backend: Any, http: httpx.AsyncClient, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr("gateway.upstream.catalog.REFRESH_SECONDS", 0)
    flood = [asking(http, NORTH) for _ in range(40)]
    await held.until(CAPACITY * 2 // 5)
    backend.lease_list = []
    monkeypatch.setattr("gateway.upstream.catalog.PATIENCE_SECONDS", 0)
    watch = asyncio.ensure_future(app.state.generator.watch())
    assert await statuses(flood) == [503] * 40
    watch.cancel()
