"""Beside decodes a prompt's chunk is short enough for a step that answers can wait for."""

import pytest

from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.plan import StepResult
from scheduler_svc.core.prefill_budget import PrefillBudget

BUDGET = 512


def chunk(tokens: int, token_us: int, decodes: int = 0, decodes_us: int = 0):
    """Counts, samples and time of a step with a prompt's chunk."""
    return [1] * decodes + [tokens], [1] * decodes + [0], tokens * token_us + decodes_us


def test_nothing_is_known_at_first() -> None:
    budget = PrefillBudget()
    assert budget.beside_decodes(BUDGET) == BUDGET
    budget.learn([BUDGET], [1], 0)  # nobody knows how long it took
    budget.learn([1, 1], [1, 1], 1000)  # no prompt
    budget.learn([5, 1], [5, 1], 1000)  # four drafts
    assert budget.beside_decodes(BUDGET) == BUDGET


def test_a_prompt_takes_as_long_as_some_steps_that_decode() -> None:
    budget = PrefillBudget()
    assert budget.steps_for(32) == 2
    budget.learn(*chunk(BUDGET, 20))
    assert budget.steps_for(32) == 2
    budget.learn([1], [1], 1000)
    assert budget.steps_for(100) == pytest.approx(2)


@pytest.mark.parametrize(("token_us", "expected"), [(20, BUDGET), (500, 300), (2500, 60), (10**6, 1)])
def test_beside_decodes_prompts_get_what_fits_into_the_time(token_us: int, expected: int) -> None:
    budget = PrefillBudget()
    budget.learn(*chunk(BUDGET, token_us))
    assert budget.beside_decodes(BUDGET) == expected
    assert budget.beside_decodes(10) == min(10, expected)
    half = PrefillBudget(0.075)
    half.learn(*chunk(BUDGET, token_us))
    assert half.beside_decodes(BUDGET) == min(BUDGET, max(1, int(75_000 / token_us)))


@pytest.mark.parametrize(
    ("step_seconds", "decodes_us", "expected"),
    [
        (0.15, 50_000, 100),
        (0.15, 100_000, 100),
        (0.15, 150_000, 150),
        (None, 30_000, 120),
        (None, 50_000, 150),
        (None, 150_000, 450),
    ],
)
def test_prompts_leave_decodes_their_time_and_get_a_part_of_the_step_at_least(
    step_seconds: float | None, decodes_us: int, expected: int
) -> None:
    """A half where somebody says what a step should take, otherwise three quarters."""
    budget = PrefillBudget(step_seconds)
    for _ in range(3):
        budget.learn([1] * 8, [1] * 8, decodes_us)
    budget.learn(*chunk(BUDGET, 1000))
    assert budget.beside_decodes(BUDGET) == expected
    for _ in range(40):
        budget.learn(*chunk(30, 1000, 8, decodes_us))
    assert budget.beside_decodes(BUDGET) == pytest.approx(expected, abs=1)


def test_what_is_known_follows_what_is_seen() -> None:
    budget = PrefillBudget()
    budget.learn(*chunk(BUDGET, 100))
    for _ in range(40):
        budget.learn(*chunk(BUDGET, 1000))
    assert budget.beside_decodes(BUDGET) == pytest.approx(150, abs=1)
    budget.learn(*chunk(2, 75_000))  # a hiccup
    for _ in range(40):  # of which short chunks recover, too
        budget.learn(*chunk(budget.beside_decodes(BUDGET), 1000))
    assert budget.beside_decodes(BUDGET) == pytest.approx(150, abs=1)


@pytest.mark.parametrize("hiccup_us", [1_000_000, 10_000_000, 600_000_000])
def test_decodes_that_have_become_faster_do_not_make_prompts_free(hiccup_us: int) -> None:
    """No step only decodes any more, which would say how long that takes now."""
    budget = PrefillBudget()
    budget.learn(*chunk(BUDGET, 1000))
    budget.learn([1] * 8, [1] * 8, hiccup_us)
    for _ in range(3000):
        budget.learn(*chunk(budget.beside_decodes(BUDGET), 1000, 8, 50_000))
    assert budget.beside_decodes(BUDGET) == pytest.approx(150, rel=0.1)
    budget.learn([1] * 8, [1] * 8, 50_000)
    assert budget.steps_for(100) == pytest.approx(2, rel=0.1)


def test_all_that_was_slow_for_a_while_is_known_to_be_fast_again() -> None:
    budget = PrefillBudget()
    budget.learn([1] * 8, [1] * 8, 10_000_000)
    budget.learn(*chunk(BUDGET, 100_000))
    for _ in range(3000):
        budget.learn(*chunk(budget.beside_decodes(BUDGET), 10_000, 8, 1_000_000))
    assert 10 <= budget.beside_decodes(BUDGET) <= 300


@pytest.mark.parametrize(("token_us", "beside"), [(20, BUDGET - 1), (2500, 59)])
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
    for _ in range(3):
        turn()
    assert counts == [[BUDGET], [100], [1]]
    fleet.accept(fake.request([2] * 2000, max_tokens=1, name="long"))
    begun = len(counts)
    for _ in range(3):
        turn()
    assert counts[begun:] == [[1, beside]] * 3
