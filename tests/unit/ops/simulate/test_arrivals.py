"""Drawn loads are what they are called, and the same for the same seed."""

from collections import Counter
from itertools import pairwise

import pytest

from ops.simulate.arrivals import BURST, KINDS, SYSTEM_TOKENS, TURNS, Load


@pytest.mark.parametrize("kind", KINDS)
def test_a_load_is_drawn(kind) -> None:
    load = Load(kind, requests=4001, rate=20, output_lengths=(3, 9), tenants=3, seed=5)
    arrivals = list(load.arrivals())
    assert arrivals == list(load.arrivals())
    assert arrivals != list(Load(kind, requests=4001, rate=20, output_lengths=(3, 9), seed=6).arrivals())
    assert sum(1 + len(each.turns) for each in arrivals) == 4001
    assert all(one.at <= other.at for one, other in pairwise(arrivals))
    assert 4001 / arrivals[-1].at == pytest.approx(20, rel=0.25)
    assert {each.output_tokens for each in arrivals} == set(range(3, 10))
    counts = Counter(each.tenant for each in arrivals)
    first, second, third = (counts[f"tenant-{number}"] for number in (1, 2, 3))
    if kind == "flood":
        assert first / 10 == pytest.approx(second, rel=0.2) == pytest.approx(third, rel=0.2)
    else:
        assert first > second > third > 0
    if kind != "chats":
        assert {each.priority for each in arrivals} == {0, 1, 2}
        assert min(each.timeout for each in arrivals) < 2 < 29 < max(each.timeout for each in arrivals)


def test_bursts_come_at_once() -> None:
    times = Counter(each.at for each in Load("bursts", requests=3 * BURST + 5).arrivals())
    assert sorted(times.values()) == [5, BURST, BURST, BURST]


def test_chats_go_on() -> None:
    chats = list(Load("chats", requests=3 * TURNS + 1).arrivals())
    assert [len(each.turns) for each in chats] == [TURNS - 1] * 3 + [0]
    assert all(turn.pause > 0 for each in chats for turn in each.turns)


def test_system_prompts_are_shared() -> None:
    arrivals = list(Load("shared", requests=200, prompt_lengths=(7,)).arrivals())
    assert all(
        (each.shared_tokens, each.prompt_tokens) == (SYSTEM_TOKENS, SYSTEM_TOKENS + 7) for each in arrivals
    )
    assert 1 < len({each.prefix for each in arrivals}) < 10
