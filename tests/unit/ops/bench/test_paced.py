"""What the chain carries is measured with a worker whose device is a clock."""

import asyncio

import pytest

from ops.bench import paced


def test_no_more_comes_through_than_the_device_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced, "SECONDS", 1.0)
    alone, several = asyncio.run(paced.carried(4.0, (1, 4), seed=1))
    for load, users in ((alone, 1), (several, 4)):
        assert load["concurrency"] == users
        assert load["output_tokens"] == users * paced.ANSWER  # no model says when an answer ends
        assert 0.2 < load["of_the_device"] <= 1
        assert load["of_the_device"] == pytest.approx(load["output_rate"] * 0.004 / users, abs=0.001)
        assert load["cpu_us_per_token"].keys() == {"gateway", "redis", "scheduler", "tokenizer", "worker"}
        assert min(load["cpu_us_per_token"].values()) > 0
    assert several["cpu_us_per_token_outside_worker"] < alone["cpu_us_per_token_outside_worker"]
