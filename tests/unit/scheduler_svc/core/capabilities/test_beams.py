"""Beam search on a scheduler: the answers are those of a search alone, whatever is preempted or lost."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_svc.core.capabilities import beams
from scheduler_svc.core.phases.preempt import preempt

Make = Callable[..., Any]
PROMPT = [3, 1, 4, 1, 5, 9]


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize(("width", "n"), [(2, 1), (3, 2), (4, 4)])
def test_the_answers_are_those_of_the_search_alone(alone: Make, depth: int, width: int, n: int) -> None:
    one = alone(depth, num_blocks=40, max_slots=8)
    group = one.arrive(PROMPT, beams=width, n=n, max_tokens=12)
    beside = one.arrive([7], max_tokens=20)
    one.run()
    one.check(group)
    one.check(beside)
    assert one.scheduler.idle


def test_a_round_is_not_planned_ahead(alone: Make) -> None:
    one = alone(depth=3, num_blocks=40)
    one.arrive(PROMPT, beams=3, max_tokens=6)
    while one.step():
        assert one.scheduler.in_flight == 0


def test_the_prompt_is_computed_once(alone: Make) -> None:
    one = alone(num_blocks=40)
    one.arrive(PROMPT, beams=3, max_tokens=4)
    one.run()
    assert one.worker.computed_tokens <= len(PROMPT) + 3 * 3


def test_a_beam_that_has_reported_waits_for_its_round_before_it_waits_for_a_slot(bench: Make) -> None:
    one = bench(num_blocks=40)
    group = one.arrive(PROMPT, beams=3, max_tokens=6)
    plan, state = one.plan(), one.scheduler.state
    while len(plan.rows.slots) < 3:
        one.complete(plan)
        plan = one.plan()
    late, early = group.sequences[0], group.sequences[1]
    preempt(state, late)  # so that its result is dropped, and the round goes on
    one.complete(plan)
    preempt(state, early)
    assert beams.is_parked(early)
    assert not beams.is_parked(late)
    assert state.waiting.sequences() == [late]
    one.scheduler.check_integrity()
    one.run()
    assert one.scheduler.idle


@pytest.mark.parametrize("steps", range(1, 7))
def test_it_begins_its_round_again_on_another_worker(alone: Make, steps: int) -> None:
    one = alone(num_blocks=40)
    group = one.arrive(PROMPT, beams=3, n=2, max_tokens=6)
    one.run(steps)
    one.fleet.remove_worker(one.scheduler)
    one.join()
    one.run()
    one.check(group)
