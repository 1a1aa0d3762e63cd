"""One scheduler and its strict worker: planned ahead (`alone`), or stepped by hand in lock step (`bench`)."""

from collections import defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.plan import Outcome, StepPlan
from scheduler_svc.core.sequence import SequenceGroup


class Alone:
    """Plans up to `depth` ahead."""

    def __init__(self, fake: SimpleNamespace, depth: int = 2, **limits: int) -> None:
        self.fake, self.depth = fake, depth
        self.fleet = Fleet(1000)
        self.limits = fake.limits(**limits)
        self.given: dict[SequenceGroup, list[list[int]]] = {}
        self.embedded: dict[SequenceGroup, bytes] = {}
        self.scored: dict[SequenceGroup, list[Any]] = defaultdict(list)
        self.most_held = 0
        self.join()

    def join(self) -> None:
        """A worker comes, in place of one that is lost."""
        self.scheduler, _ = self.fleet.add_worker(self.limits)
        self.worker = self.fake.StrictWorker(self.limits)
        self.results: deque[Any] = deque()

    def arrive(self, prompt: list[int], **fields: Any) -> SequenceGroup:
        group, outcome = self.fleet.accept(self.fake.request(prompt, **fields))
        assert not outcome.failed
        self.given[group] = [[] for _ in range(group.request.n)]
        for so_far in group.request.resumed:
            self.given[group][so_far.index] += so_far.tokens
        return group

    def step(self) -> bool:
        """Plan as far ahead as may be, complete one; False if there is nothing to do."""
        while self.scheduler.in_flight < self.depth and (plan := self.scheduler.plan()) is not None:
            self.results.append(self.worker.execute(plan))
        self.most_held = max(self.most_held, self.scheduler.held_blocks)
        if not self.results:
            return False
        self.complete()
        return True

    def complete(self) -> None:
        """Take the oldest result."""
        outcome = self.scheduler.complete(self.results.popleft())
        self.fleet.settle(self.scheduler, outcome)
        for gain in outcome.gains:
            self.given[gain.group][gain.sequence_index].append(gain.token)
        self.embedded.update(outcome.embedded)
        for group, scores in outcome.scored:
            self.scored[group] += scores.values
        for number in self.worker.look():
            self.scheduler.seen(number)
        self.scheduler.check_integrity()

    def run(self, steps: int = 10_000) -> None:
        while steps and self.step():
            steps -= 1

    def check(self, group: SequenceGroup) -> None:
        """Its sequences have what they get alone."""
        longest, window = self.limits.max_length, self.limits.window
        for index, given in enumerate(self.given[group]):
            assert given == self.fake.reference(group.request, index, longest, window)


@pytest.fixture
def alone(fake: SimpleNamespace) -> Callable[..., Alone]:
    def make(depth: int = 2, **limits: int) -> Alone:
        return Alone(fake, depth, **limits)

    return make


class Bench:
    """One scheduler with a strict worker, stepped by hand."""

    def __init__(self, fake: SimpleNamespace, limits: dict[str, int], token_budget: int = 1000) -> None:
        self.fake = fake
        self.fleet = Fleet(token_budget)
        self.scheduler, _ = self.fleet.add_worker(fake.limits(**limits))
        self.worker = fake.StrictWorker(self.scheduler.limits)

    def arrive(self, prompt: list[int], **fields: Any) -> SequenceGroup:
        group, outcome = self.fleet.accept(self.fake.request(prompt, **fields))
        assert not outcome.failed
        return group

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan()
        assert plan is not None
        self.scheduler.check_integrity()
        return plan

    def complete(self, plan: StepPlan) -> Outcome:
        outcome = self.scheduler.complete(self.worker.execute(plan))
        self.fleet.settle(self.scheduler, outcome)
        self.scheduler.check_integrity()
        return outcome

    def step(self) -> StepPlan:
        plan = self.plan()
        self.complete(plan)
        return plan

    def compile(self) -> None:
        """The worker compiles its grammars."""
        for number in self.worker.compile():
            self.scheduler.compiled(number)

    def look(self) -> None:
        """The worker sees its images."""
        for number in self.worker.look():
            self.scheduler.seen(number)

    def run(self) -> int:
        """Lock step to the end; how many steps."""
        steps = 0
        while (plan := self.scheduler.plan()) is not None:
            self.complete(plan)
            self.compile()
            self.look()
            steps += 1
            assert steps < 1000
        return steps


@pytest.fixture
def bench(fake: SimpleNamespace) -> Callable[..., Bench]:
    def make(token_budget: int = 1000, **limits: int) -> Bench:
        return Bench(fake, limits, token_budget)

    return make
