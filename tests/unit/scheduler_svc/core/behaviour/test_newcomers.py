"""Who has had more than others begins again, however many come that have had nothing.

Clients name users as they like, and without keys each address is a tenant. So there may always be new ones.
"""

from collections.abc import Callable
from math import ceil
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.plan import StepResult
from scheduler_svc.core.policies import POLICIES
from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.core.shares import TURN

BUDGET = 32


class Flood:
    """One worker at which somebody new asks for something as soon as fewer than `queue` wait."""

    def __init__(
        self, fake: SimpleNamespace, policy: str, slots: int, queue: int, tenants: bool, **asked: int
    ) -> None:
        """`tenants`: whether each is a tenant, or a user of one. `asked`: the tokens of prompt and answer."""
        self.fake, self.queue, self.tenants, self.asked = fake, queue, tenants, asked
        self.fleet = Fleet(BUDGET, policy)
        limits = {"num_blocks": 1000, "block_size": 16, "max_model_len": 512, "max_step_tokens": BUDGET}
        self.scheduler, _ = self.fleet.add_worker(fake.limits(**limits, max_slots=slots))
        self._new: list[SequenceGroup] = []
        self._number = 0

    def ask(self, name: str, prompt: int, answer: int, **fields: Any) -> SequenceGroup:
        self._number += 1
        who = {"tenant": name} if self.tenants else {"tenant": "all", "user": name}
        text = [self._number % 30] * prompt
        salt = str(self._number)
        group, _ = self.fleet.accept(self.fake.request(text, max_tokens=answer, salt=salt, **who, **fields))
        return group

    def reaches(self, done: Callable[[], bool], most: int) -> bool:
        """Whether it is done within so many steps, while new ones come."""
        for _ in range(most):
            if done():
                return True
            self._new = [each for each in self._new if each.sequences[0].waits]
            while len(self._new) < self.queue:
                self._new.append(self.ask(f"new {self._number}", **self.asked, priority=-9, deadline=1.0))
            plan = self.scheduler.plan()
            assert plan is not None
            result = StepResult(plan.step, [1] * sum(plan.rows.samples))
            self.fleet.settle(self.scheduler, self.scheduler.complete(result))
        return done()


@example(policy="fcfs", slots=2, queue=6, tenants=True, had=20, answer=20)
@settings(max_examples=40)
@given(
    policy=st.sampled_from(list(POLICIES)),
    slots=st.integers(1, 6),
    queue=st.integers(1, 12),
    tenants=st.booleans(),
    had=st.integers(1, 2 * TURN),
    answer=st.integers(1, TURN),
)
def test_who_has_had_an_answer_gets_the_next(
    fake: SimpleNamespace, policy: str, slots: int, queue: int, tenants: bool, had: int, answer: int
) -> None:
    """It waits until one that takes turns has had as much, and until those before it have had theirs."""
    flood = Flood(fake, policy, slots, queue, tenants, prompt=3, answer=answer)
    first = flood.ask("steady", 3, had)
    assert flood.reaches(lambda: not first.unfinished, 100 * had)
    again = flood.ask("steady", 3, had)
    rounds = ceil((queue + slots + 1) / slots)
    assert flood.reaches(lambda: not again.sequences[0].waits, rounds * (had + answer + 4) + TURN)


@example(policy="priority", slots=5, tenants=False, prompt=BUDGET, chunks=5)
@settings(max_examples=30)
@given(
    policy=st.sampled_from(list(POLICIES)),
    slots=st.integers(2, 6),
    tenants=st.booleans(),
    prompt=st.integers(BUDGET // 2, 2 * BUDGET),
    chunks=st.integers(2, 8),
)
def test_a_prompt_that_has_begun_is_computed_to_its_end(
    fake: SimpleNamespace, policy: str, slots: int, tenants: bool, prompt: int, chunks: int
) -> None:
    """The prompts of new ones would have all of each step."""
    flood = Flood(fake, policy, slots, slots, tenants, prompt=prompt, answer=1)
    long = flood.ask("steady", chunks * BUDGET, 1)
    assert flood.reaches(lambda: not long.unfinished, 2 * (chunks + 1) * (2 * slots + 1) + TURN)


@pytest.mark.parametrize("tenants", [False, True])
def test_new_ones_wait_no_longer_than_others(fake: SimpleNamespace, tenants: bool) -> None:
    flood = Flood(fake, "fcfs", 4, 8, tenants, prompt=3, answer=8)
    assert flood.reaches(lambda: flood.scheduler.step == 100, 100)
    new = flood.ask("new", 3, 8)
    assert flood.reaches(lambda: not new.unfinished, 5 * 8)
