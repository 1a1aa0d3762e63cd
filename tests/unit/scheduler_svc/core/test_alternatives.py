"""Rows that want many alternatives share a step's bound on them; others are not concerned."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_svc.core import step_builder


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize(("wanted", "most"), [(30, 3), (50, 2), (101, 1)])
def test_a_step_samples_no_more_than_a_message_holds(
    alone: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, depth: int, wanted: int, most: int
) -> None:
    monkeypatch.setattr(step_builder, "MOST", 100)
    world = alone(depth=depth, num_blocks=64, max_slots=16, max_step_tokens=64)
    groups = [world.arrive([seed, 1, 2], seed=seed, alternatives=wanted, max_tokens=4) for seed in range(4)]
    groups.append(world.arrive([7, 1, 2], seed=5, alternatives=wanted, n=3, max_tokens=4))
    plain = [world.arrive([seed, 3], seed=seed, max_tokens=6) for seed in range(3)]
    sampled, most_plain = [], 0
    while world.step():
        for flight in world.scheduler.flights:
            samples = list(zip(flight.sequences, flight.plan.rows.samples, strict=True))
            sampled.append(sum(count for each, count in samples if each.group.request.alternatives))
            most_plain = max(most_plain, sum(count for each, count in samples if each.group in plain))
    assert max(sampled) == most
    assert most_plain == len(plain)
    for group in groups + plain:
        world.check(group)
