"""Plans in flight: as many as the round trip takes, and no more."""

import pytest

from scheduler_svc.plan_depth import PlanDepth


def after(round_trip: float, step: float, depth: PlanDepth, steps: int = 30) -> int:
    """Plans after `steps` steps, each of which was sent to an idle worker."""
    for number in range(steps):
        depth.plan_sent(1, number)
        depth.result_came(step, number + round_trip + step)
    return depth.plans


@pytest.mark.parametrize(
    ("round_trip", "step", "plans"),
    [(0.002, 0.05, 2), (0.002, 0.003, 2), (0.002, 0.002, 3), (0.002, 0.0012, 4), (0.002, 0.0001, 4)],
)
def test_steps_that_are_shorter_than_the_round_trip_need_more(
    round_trip: float, step: float, plans: int
) -> None:
    assert after(round_trip * 0.99, step, PlanDepth()) == plans


def test_it_begins_with_two_and_follows_what_is_measured() -> None:
    depth = PlanDepth()
    assert depth.plans == 2
    assert after(0.003, 0.001, depth) == 4
    assert after(0.003, 0.1, depth) == 2
    assert after(0.002, 0.002, depth, steps=60) == 3


def test_a_plan_behind_others_says_nothing_of_the_round_trip() -> None:
    depth = PlanDepth()
    depth.plan_sent(1, 0.0)
    depth.plan_sent(2, 0.001)
    depth.result_came(0.01, 0.0115)
    depth.plan_sent(2, 0.012)
    depth.result_came(0.01, 0.025)
    depth.result_came(0.01, 5.0)
    assert depth.plans == 2


def test_a_fixed_number_stays() -> None:
    assert after(1.0, 0.001, PlanDepth(1)) == 1


def test_a_clock_that_shows_less_than_the_step_took() -> None:
    assert after(-0.001, 0.01, PlanDepth()) == 2
