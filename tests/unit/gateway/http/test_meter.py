"""Limits on all requests of a caller together, counted in Redis for several gateways."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gateway.errors import Overloaded, Unavailable
from gateway.http.meter import Meter, Visit
from ops.runtime.limits import Limits
from proto.rpc.line import Line
from tests.unit.gateway.conftest import app_of, stores_of

ME = "me"


@pytest.fixture
def meter(line: Line, prefix: str) -> Meter:
    return Meter(line, prefix, "gateway-1")


async def refused(meter: Meter, limits: Limits, tokens: int = 0, account: str = ME) -> Overloaded:
    with pytest.raises(Overloaded) as refusal:
        await meter.begin(account, limits, tokens)
    return refusal.value


async def test_requests_a_minute_in_all_gateways(meter: Meter, line: Line, prefix: str) -> None:
    limits = Limits.parse("requests_per_minute=4")
    other = Meter(line, prefix, "gateway-2")
    lefts = []
    for each in (meter, other, meter, other):
        headers = await each.begin(ME, limits, 0)
        lefts.append(headers["x-ratelimit-remaining-requests"])
        await each.end(ME, limits, 0, 1000)
    assert lefts == ["3", "2", "1", "0"]
    assert headers["x-ratelimit-limit-requests"] == "4"
    assert 40 < float(headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60
    assert not [name for name in headers if "tokens" in name], "there is no limit on tokens"
    refusal = await refused(meter, limits)
    assert "at most 4" in refusal.message
    assert 1 <= int(refusal.headers["Retry-After"]) <= 15, "then there is room for one"
    assert refusal.headers["x-ratelimit-remaining-requests"] == "0"
    await meter.begin("somebody else", limits, 0)


async def test_tokens_that_were_not_used_come_back(meter: Meter) -> None:
    limits = Limits.parse("tokens_per_minute=6000")
    headers = await meter.begin(ME, limits, 6000)
    assert int(headers["x-ratelimit-remaining-tokens"]) < 200
    await refused(meter, limits, 3000)
    await meter.end(ME, limits, 6000, 3000)
    headers = await meter.begin(ME, limits, 2500)
    # A hundred come back every second besides.
    assert 500 <= int(headers["x-ratelimit-remaining-tokens"]) < 2500
    assert headers["x-ratelimit-limit-tokens"] == "6000"


async def test_tokens_that_nobody_asked_for_are_paid_afterwards(meter: Meter) -> None:
    limits = Limits.parse("tokens_per_minute=600")
    await meter.begin(ME, limits, 0)
    await meter.end(ME, limits, 0, 1800)
    refusal = await refused(meter, limits)
    assert 100 < int(refusal.headers["Retry-After"]) <= 121, "two minutes of debt"
    assert refusal.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_a_request_larger_than_the_bucket_takes_all_of_it(meter: Meter) -> None:
    limits = Limits.parse("tokens_per_minute=100")
    await meter.begin(ME, limits, 100_000)
    await meter.end(ME, limits, 100_000, 100)
    refusal = await refused(meter, limits, 50)
    assert 1 <= int(refusal.headers["Retry-After"]) <= 30, "half a bucket takes half a minute"


async def test_requests_at_once_in_all_gateways(meter: Meter, line: Line, prefix: str) -> None:
    limits = Limits.parse("concurrency=3")
    other = Meter(line, prefix, "gateway-2")
    for gateway in ("gateway-1", "gateway-2"):
        await line.execute(("SET", f"{prefix}alive:{gateway}", "x"))
    await asyncio.gather(meter.begin(ME, limits, 0), meter.begin(ME, limits, 0), other.begin(ME, limits, 0))
    for each in (meter, other):
        refusal = await refused(each, limits)
        assert refusal.headers["Retry-After"] == "1"
    await other.end(ME, limits, 0, 0)
    await meter.begin(ME, limits, 0)
    await refused(other, limits)
    for _ in range(3):
        await meter.end(ME, limits, 0, 0)
    for _ in range(3):
        await other.begin(ME, limits, 0)


async def test_what_a_dead_gateway_had_under_way_does_not_count(
    meter: Meter, line: Line, prefix: str
) -> None:
    limits = Limits.parse("concurrency=1")
    other = Meter(line, prefix, "gateway-2")
    await line.execute(("SET", f"{prefix}alive:gateway-2", "x"))
    await other.begin(ME, limits, 0)
    await refused(meter, limits)
    await line.execute(("DEL", f"{prefix}alive:gateway-2"))
    await meter.begin(ME, limits, 0)
    refusal = await refused(meter, limits)
    assert refusal.headers["Retry-After"] == "1", "its place is taken again"


@pytest.mark.parametrize("limit", ["concurrency=1", "tokens_per_minute=100"])
async def test_a_client_that_leaves_while_redis_is_asked_holds_nothing(
    line: Line, prefix: str, limit: str
) -> None:
    await line.execute(("SET", f"{prefix}alive:gateway-1", "x"))
    asked, answers = asyncio.Event(), asyncio.Event()

    async def execute(*commands: Any) -> Any:
        replies = await line.execute(*commands)
        asked.set()
        await answers.wait()
        return replies

    slow: Any = SimpleNamespace(execute=execute)
    visit = Visit(Meter(slow, prefix, "gateway-1"), ME, Limits.parse(limit))
    beginning = asyncio.ensure_future(visit.begin(100, lambda: 0))
    await asked.wait()
    beginning.cancel()
    await asyncio.wait([beginning])
    answers.set()
    await visit.end()
    others = Meter(line, prefix, "gateway-2").begin(ME, Limits.parse(limit), 100)
    assert isinstance(await others, dict), "what it took is there again: nobody is refused"


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_request_that_was_not_counted_gives_nothing_back(
    meter: Meter, line: Line, prefix: str, refuses: bool
) -> None:
    limits = Limits.parse("tokens_per_minute=100 concurrency=9")
    await meter.begin(ME, limits, 100)
    visit = Visit(meter, ME, limits)
    if refuses:
        with pytest.raises(Overloaded):
            await visit.begin(100, lambda: 0)
    await visit.end()
    await refused(meter, limits, 100)
    assert meter._running == {ME: 1}


async def test_nothing_is_kept_of_callers_that_ask_no_more(meter: Meter, line: Line, prefix: str) -> None:
    limits = Limits.parse("concurrency=5 requests_per_minute=6000 tokens_per_minute=6000")
    await meter.begin(ME, limits, 100)
    await meter.begin(ME, limits, 100)
    await meter.end(ME, limits, 100, 50)
    (left,) = await line.execute(("PTTL", f"{prefix}limits:{ME}"))
    assert left > 3_600_000, "what runs is known for as long as it may run"
    await meter.end(ME, limits, 100, 50)
    (left,) = await line.execute(("PTTL", f"{prefix}limits:{ME}"))
    assert left <= 2000, "until the buckets are full"
    assert not meter._running


async def test_away() -> None:
    meter = Meter(Line("unix:///nowhere/redis.sock"), "x:", "gateway-1")
    with pytest.raises(Unavailable):
        await meter.begin(ME, Limits.parse("concurrency=1"), 0)
    assert not meter._running


async def test_clients_are_told(backend: Any, meter: Meter) -> None:
    limits = Limits.parse("requests_per_minute=2 tokens_per_minute=100000 concurrency=1")
    transport = httpx.ASGITransport(app_of(backend, limits=limits, stores=stores_of(meter=meter)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        ask = {"model": "m", "prompt": "A", "max_tokens": 2}
        refusal = await http.post("/v1/completions", json=ask | {"n": 1000})
        assert refusal.status_code == 400, "which does not count"
        first = await http.post("/v1/completions", json=ask | {"stream": True})
        chat = {"model": "m", "messages": [{"role": "user", "content": "A"}]}
        second = await http.post("/v1/chat/completions", json=chat)
        third = await http.post("/v1/embeddings", json={"model": "m", "input": "A"})
        models = await http.get("/v1/models")
    assert [answer.status_code for answer in (first, second, third, models)] == [200, 200, 429, 200]
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-limit-tokens"] == "100000"
    assert second.headers["x-ratelimit-remaining-requests"] == "0"
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    assert int(third.headers["retry-after"]) >= 1
    assert third.json()["error"]["code"] == "rate_limit_exceeded"
    assert "x-ratelimit-limit-requests" not in models.headers


async def test_who_has_no_such_limits_pays_nothing(backend: Any) -> None:
    meter = Meter(Line("unix:///nowhere/redis.sock"), "x:", "gateway-1")
    app = app_of(backend, limits=Limits.parse("seconds=60"), stores=stores_of(meter=meter))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.post("/v1/completions", json={"model": "m", "prompt": "A"})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
