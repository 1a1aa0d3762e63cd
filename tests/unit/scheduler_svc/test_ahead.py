"""Plans under way: as many as it takes, and no more."""

import pytest

from scheduler_svc.ahead import Ahead


def after(way: float, step: float, ahead: Ahead, steps: int = 30) -> int:
    """Plans, after so many steps that each came to an idle worker."""
    for number in range(steps):
        ahead.sent(1, number)
        ahead.came(step, number + way + step)
    return ahead.plans


@pytest.mark.parametrize(
    ("way", "step", "plans"),
    [(0.002, 0.05, 2), (0.002, 0.003, 2), (0.002, 0.002, 3), (0.002, 0.0012, 4), (0.002, 0.0001, 4)],
)
def test_steps_that_are_shorter_than_the_way_need_more(way: float, step: float, plans: int) -> None:
    assert after(way * 0.99, step, Ahead()) == plans


def test_it_begins_with_two_and_follows_what_is_seen() -> None:
    ahead = Ahead()
    assert ahead.plans == 2
    assert after(0.003, 0.001, ahead) == 4
    assert after(0.003, 0.1, ahead) == 2
    assert after(0.002, 0.002, ahead, steps=60) == 3


def test_what_waits_behind_other_plans_says_nothing_of_the_way() -> None:
    ahead = Ahead()
    ahead.sent(1, 0.0)
    ahead.sent(2, 0.001)
    ahead.came(0.01, 0.0115)
    ahead.sent(2, 0.012)
    ahead.came(0.01, 0.025)
    ahead.came(0.01, 5.0)
    assert ahead.plans == 2


def test_a_given_number_stays() -> None:
    assert after(1.0, 0.001, Ahead(1)) == 1


def test_a_clock_that_says_less_than_the_step_took() -> None:
    assert after(-0.001, 0.01, Ahead()) == 2
