"""Steps are told as they were planned and answered."""

import pytest

from proto.arrays import pack, unpack
from proto.worker_pb2 import StepResult
from scheduler_svc.core.plan import Copies, Rows, StepPlan, SwapIn, SwapOut
from scheduler_svc.core.prefill_budget import PrefillBudget
from scheduler_svc.step_log import MOST_STEPS, StepLog


@pytest.fixture
def log() -> StepLog:
    return StepLog(64, PrefillBudget())


def test_a_step_s_parts(log: StepLog) -> None:
    """A decode, one with two drafts of which one holds, a chunk, and the last chunk of a prompt."""
    log.planned(
        StepPlan(
            7,
            rows=Rows((0, 1, 2, 3), (5, 9, 0, 16), (1, 3, 16, 4), (1, 3, 0, 1)),
            draft_tokens=(8, 9),
            copies=Copies((1,), (2,)),
            swap_out=SwapOut((4,), (0,)),
            swap_in=SwapIn((1,), (6,)),
        )
    )
    assert log.take() == []
    log.computed(StepResult(step=7, tokens=pack([3, 8, 5, -1, 4]), duration_us=1200))
    (step,) = log.take()
    assert (step.number, step.decodes, step.chunks, step.prompt_tokens) == (7, 2, 2, 20)
    assert (step.drafts, step.drafts_held, step.sampled, step.duration_us) == (2, 1, 4, 1200)
    assert step.budget == 64
    assert [list(unpack(each)) for each in (step.copied_from, step.copied_to)] == [[1], [2]]
    assert [list(unpack(each)) for each in (step.swapped_out, step.swapped_in)] == [[4], [6]]
    assert log.take() == []


def test_beside_decodes_prompts_have_a_budget_of_their_own() -> None:
    budget = PrefillBudget(step_seconds=0.001)
    log = StepLog(64, budget)
    budget.learn((1,), (1,), 500)
    budget.learn((32,), (0,), 3200)
    log.planned(StepPlan(1, rows=Rows((0,), (0,), (1,), (1,))))
    log.computed(StepResult(step=1, tokens=pack([1])))
    assert log.take()[0].budget == 1 + budget.beside_decodes(63) < 64


def test_a_step_planned_before_is_passed_over(log: StepLog) -> None:
    log.computed(StepResult(step=3))
    assert log.take() == []


def test_what_nobody_takes_is_bounded(log: StepLog) -> None:
    for number in range(MOST_STEPS + 9):
        log.planned(StepPlan(number))
        log.computed(StepResult(step=number))
    assert [step.number for step in log.take()] == list(range(9, MOST_STEPS + 9))
