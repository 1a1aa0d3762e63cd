"""Beside decodes a prompt's chunk is short enough for a step that answers can wait for."""

import pytest

from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.plan import StepResult
from scheduler_svc.core.prefill_budget import LEAST, SHARE_US, PrefillBudget

BUDGET = 512


def test_nothing_is_known_at_first() -> None:
    budget = PrefillBudget()
    assert budget.beside_decodes(BUDGET) == BUDGET
    budget.learn(LEAST - 1, 10**9)  # too few to tell
    budget.learn(BUDGET, 0)  # nobody knows how long it took
    assert budget.beside_decodes(BUDGET) == BUDGET


@pytest.mark.parametrize(("token_us", "expected"), [(20, BUDGET), (500, 300), (2500, LEAST), (10**6, LEAST)])
def test_beside_decodes_prompts_get_what_fits_into_the_time(token_us: int, expected: int) -> None:
    budget = PrefillBudget()
    budget.learn(BUDGET, BUDGET * token_us)
    assert budget.beside_decodes(BUDGET) == expected
    assert budget.beside_decodes(10) == 10


def test_what_is_known_follows_what_is_seen() -> None:
    budget = PrefillBudget()
    budget.learn(BUDGET, BUDGET * 100)
    for _ in range(40):
        budget.learn(BUDGET, BUDGET * 1000)
    assert budget.beside_decodes(BUDGET) == pytest.approx(SHARE_US / 1000, abs=1)


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
        scheduler.complete(StepResult(plan.step, [0] * sum(plan.rows.samples), duration_us=took))

    fleet.accept(fake.request([1] * (BUDGET + 100), max_tokens=200, name="answer"))
    turn()
    turn()
    assert counts == [[BUDGET], [100]]
    fleet.accept(fake.request([2] * 2000, max_tokens=1, name="long"))
    begun = len(counts)
    for _ in range(3):
        turn()
    assert counts[begun:] == [[1, beside]] * 3
