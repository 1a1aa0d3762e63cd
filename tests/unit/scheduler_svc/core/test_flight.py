"""Answers that do not answer their plan."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.plan import StepResult

MakeBench = Callable[..., Any]


@pytest.mark.parametrize(
    "answer",
    [
        StepResult(2, [1]),
        StepResult(1, []),
        StepResult(1, [1, 1]),
        StepResult(1, [-1]),
        StepResult(1, [40]),
        StepResult(1, [1], {1: "no such row"}),
    ],
)
def test_an_answer_that_does_not_fit_the_plan_is_a_fault(bench: MakeBench, answer: StepResult) -> None:
    one = bench()
    group = one.arrive([1], max_tokens=3)
    one.plan()
    with pytest.raises(WorkerFault):
        one.scheduler.complete(answer)
    one.fleet.remove_worker(one.scheduler)
    assert list(group.sequences[0].tokens) == [1]
