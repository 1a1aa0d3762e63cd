"""Answers, refusals and what is neither are told apart."""

import asyncio

import httpx

from ops.bench.robust.overload import Crowd, Load, capacity, closed, opened, told


def crowd(places: int, seconds: float = 0.02, status: int = 429) -> Crowd:
    """A crowd before a server that takes `places` requests at once; the others get `status`."""
    running = 0

    async def serve(request: httpx.Request) -> httpx.Response:
        nonlocal running
        if b"another" in request.content:
            return httpx.Response(200)
        if running >= places:
            return httpx.Response(status, headers={"Retry-After": "1"} if status == 429 else {})
        running += 1
        await asyncio.sleep(seconds)
        running -= 1
        return httpx.Response(200)

    def connect() -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(serve), base_url="http://here")

    return Crowd(connect, "m")


async def test_capacity_is_what_is_taken_of_a_burst() -> None:
    assert await capacity(crowd(places=150)) == 150


async def test_a_closed_loop_at_capacity_is_not_refused() -> None:
    load = await closed(crowd(places=5), 5, 0.1)
    assert load.refused == []
    assert len(load.answered) >= 5
    assert min(load.answered) >= 20
    assert load.bystander


async def test_an_open_loop_beyond_capacity_is_refused_with_advice() -> None:
    load = await opened(crowd(places=2, seconds=0.2), rate=200, seconds=0.5, seed=1)
    assert len(load.answered) + len(load.refused) == 100
    assert len(load.refused) > len(load.answered)
    assert load.without_advice == 0
    assert load.strange == []


async def test_what_is_neither_is_strange() -> None:
    load = Load()
    await crowd(places=0, status=500).ask(load)
    assert (load.answered, load.refused) == ([], [])
    assert load.strange == ["500: "]


def test_ratios() -> None:
    full, over = Load(answered=[100.0] * 10), Load(answered=[130.0] * 10, refused=[5.0, 7.0])
    results = told(68, 2.0, full, over, 0.25)
    assert (results["p99_over_capacity"], results["recovery_s"]) == (1.3, 0.25)
    assert results["refusal_p99_ms"] == 7.0
    assert results["loads"]["10 times as many"]["refused"] == 2
    assert results["loads"]["at capacity"]["refused, ms"] is None
