"""Beside answers a chunk is as short as makes a step that they can wait for."""

import pytest

from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.pace import LEAST, SHARE_US, Pace
from scheduler_svc.core.plan import StepResult
from scheduler_svc.core.stretch import TOKEN

BUDGET = 512


def test_nothing_is_known_at_first() -> None:
    pace = Pace()
    assert pace.beside_answers(BUDGET) == BUDGET
    pace.learn(LEAST - 1, 10**9)  # too few to tell
    pace.learn(BUDGET, 0)  # nobody knows how long it took
    assert pace.beside_answers(BUDGET) == BUDGET


@pytest.mark.parametrize(("token_us", "expected"), [(20, BUDGET), (500, 300), (2500, LEAST), (10**6, LEAST)])
def test_as_many_as_take_so_long(token_us: int, expected: int) -> None:
    pace = Pace()
    pace.learn(BUDGET, BUDGET * token_us)
    assert pace.beside_answers(BUDGET) == expected
    assert pace.beside_answers(10) == 10


def test_what_is_known_follows_what_is_seen() -> None:
    pace = Pace()
    pace.learn(BUDGET, BUDGET * 100)
    for _ in range(40):
        pace.learn(BUDGET, BUDGET * 1000)
    assert pace.beside_answers(BUDGET) == pytest.approx(SHARE_US / 1000, abs=1)


@pytest.mark.parametrize(("token_us", "beside"), [(20, BUDGET - 1), (2500, LEAST)])
def test_a_long_prompt_beside_an_answer(fake, token_us: int, beside: int) -> None:
    """Alone it has all of a step; beside an answer it has what the answer can wait for."""
    fleet = Fleet(1000)
    limits = {"num_blocks": 600, "block_size": 16, "max_slots": 4, "max_model_len": 4000}
    scheduler, _ = fleet.add_worker(fake.limits(**limits, max_step_tokens=BUDGET))
    counts: list[list[int]] = []

    def turn() -> None:
        plan = scheduler.plan()
        assert plan is not None
        counts.append(list(plan.rows.counts))
        took = sum(plan.rows.counts) * token_us
        scheduler.complete(StepResult(plan.step, [TOKEN] * sum(plan.rows.samples), duration_us=took))

    fleet.accept(fake.request([1] * (BUDGET + 100), max_tokens=200, name="answer"))
    turn()
    turn()
    assert counts == [[BUDGET], [100]]
    fleet.accept(fake.request([2] * 2000, max_tokens=1, name="long"))
    begun = len(counts)
    for _ in range(3):
        turn()
    assert counts[begun:] == [[1, beside]] * 3
