"""What streams cost in front of the worker is measured at real processes, whose worker computes nothing."""

import asyncio

import pytest

from ops.bench import front


def test_tokens_and_requests_cost_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "ANSWER", 32)
    found = asyncio.run(front.costs(seed=1, users=4, requests=32))
    assert found["at_once"] == 4
    requests = found["cpu_ms_per_request"]
    assert requests.keys() == {"1 at once", "4 at once"}
    for used in (found["cpu_us_per_token"], *requests.values()):
        both, *each = (used[name] for name in ("both", "gateway", "tokenizer"))
        assert abs(both - sum(each)) < 0.11
        assert min(each) > 0


def test_streams_that_wait_take_memory() -> None:
    found = asyncio.run(front.idle(streams=80))  # more than run at once
    assert found["streams"] == 80
    assert min(found["before_mb"].values()) > 10
    assert 0 < found["grown_mb"]["both"] < 100


def test_the_prompt_is_as_long_as_it_says() -> None:
    found = asyncio.run(front.beside_long_prompts(tokens=4000, prompts=1))
    assert 3990 < found["prompt_tokens"] < 4010
    for gaps in found["between_tokens_ms"].values():
        # Where the reader is kept waiting several tokens come at once: most gaps may be short, and not all.
        assert gaps["p50"] <= gaps["p99"] <= gaps["longest"]
        assert gaps["longest"] > 15
