"""Workers that die of one request among bystanders, or by chance: who goes on, and who is refused.

A bystander is never refused, and gets the tokens that it gets alone.
"""

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core.errors import RequestPoisoned, StepRaised
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.flight import Flight
from scheduler_svc.core.plan import Outcome
from scheduler_svc.core.request import Pooling
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.core.suspicion import MAX_DEATHS, Loss

Fatal = Callable[[Flight], bool]


class Hospital:
    """A fleet whose workers die of steps that are fatal, and are replaced."""

    def __init__(
        self, fake: SimpleNamespace, workers: int = 1, depth: int = 2, policy: str = "fcfs", **limits: int
    ) -> None:
        self.fake, self.depth = fake, depth
        self.loss = Loss.DEATH
        """What becomes of a worker in a fatal step."""
        self.limits = fake.limits(**{"num_blocks": 64, "max_slots": 6, **limits})
        self.fleet = Fleet(1000, policy)
        self.workers: dict[Scheduler, tuple[Any, deque[Any]]] = {}
        self.given: dict[SequenceGroup, list[list[int]]] = {}
        self.failed: dict[SequenceGroup, Exception] = {}
        self.deaths = 0
        self.victims: Counter[SequenceGroup] = Counter()
        """Deaths of workers while a request of theirs was in flight."""
        for _ in range(workers):
            self.join()

    def join(self) -> None:
        scheduler, outcome = self.fleet.add_worker(self.limits)
        self.workers[scheduler] = (self.fake.StrictWorker(scheduler.limits), deque())
        self.note(outcome)

    def lose(self, scheduler: Scheduler, loss: Loss | None = None) -> None:
        """A worker is lost, with all that is in flight, and another takes its place."""
        self.deaths += 1
        self.victims.update({one.group for flight in scheduler.flights for one in flight.sequences})
        del self.workers[scheduler]
        self.note(self.fleet.remove_worker(scheduler, loss or self.loss, "why"))
        self.join()

    def ask(self, prompt: list[int], **fields: Any) -> SequenceGroup:
        group, outcome = self.fleet.accept(self.fake.request(prompt, **{"max_tokens": 12, **fields}))
        self.given[group] = [[] for _ in range(group.request.n)]
        self.note(outcome)
        return group

    def note(self, outcome: Outcome) -> None:
        for gain in outcome.gains:
            self.given[gain.group][gain.sequence_index].append(gain.token)
        self.failed |= dict(outcome.failed)

    def step(self, fatal: Fatal = lambda flight: False) -> bool:
        """Every worker plans ahead and answers one plan; False if none had anything to do."""
        moved = False
        for scheduler, (worker, results) in list(self.workers.items()):
            self.check_alone()
            while scheduler.in_flight < self.depth and (plan := scheduler.plan()) is not None:
                dead = None in results or fatal(scheduler.flights[-1])
                results.append(None if dead else worker.execute(plan))
                self.check_alone()
            if results:
                moved = True
                if results[0] is None:
                    self.lose(scheduler)
                    continue
                outcome = scheduler.complete(results.popleft())
                self.fleet.settle(scheduler, outcome)
                self.note(outcome)
                scheduler.check_integrity()
        return moved

    def run(self, fatal: Fatal = lambda flight: False) -> None:
        for _ in range(20_000):
            if not self.step(fatal):
                break
        else:
            raise AssertionError("no end")
        fleet = self.fleet
        assert not any((fleet._home, fleet._homeless, fleet._suspects, fleet._isolated))
        for scheduler in self.workers:
            assert scheduler.idle
            assert scheduler.held_blocks == 0

    def check_alone(self) -> None:
        """Nothing is in flight beside a suspect."""
        for scheduler, isolation in self.fleet._isolated.items():
            groups = {one.group for flight in scheduler.flights for one in flight.sequences}
            if isolation.suspect is not None:
                assert groups <= {isolation.suspect}
                assert set(scheduler.state.groups) <= {isolation.suspect}
        for scheduler in self.workers:
            suspects = [group for group in scheduler.state.groups if group.suspicion is not None]
            assert not suspects or scheduler in self.fleet._isolated

    def check_answer(self, group: SequenceGroup) -> None:
        assert group not in self.failed
        for index, given in enumerate(self.given[group]):
            assert given == self.fake.reference(group.request, index, self.limits.max_length)


def computes(group: SequenceGroup, place: int) -> Fatal:
    """A step that computes this position of the request."""

    def fatal(flight: Flight) -> bool:
        rows = flight.plan.rows
        return any(
            one.group is group and start <= place < start + count
            for one, start, count in zip(flight.sequences, rows.starts, rows.counts, strict=True)
        )

    return fatal


def decodes(group: SequenceGroup) -> Fatal:
    """A step with a row of the request that goes on from its prompt: each attempt gains a token first."""

    def fatal(flight: Flight) -> bool:
        counts = zip(flight.sequences, flight.plan.rows.counts, strict=True)
        return any(one.group is group and count == 1 and one.output_tokens for one, count in counts)

    return fatal


def at_intervals(chance: Random) -> Fatal:
    """Every few steps, whatever is in them."""
    left = 20

    def fatal(flight: Flight) -> bool:
        nonlocal left
        left = left - 1 if left else chance.randrange(8, 30)
        return not left

    return fatal


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("place", [0, 5, 9, 10, 14])
def test_who_kills_alone_is_refused_and_nobody_else(
    fake: SimpleNamespace, workers: int, depth: int, place: int
) -> None:
    ward = Hospital(fake, workers, depth)
    others = [ward.ask([number] * (3 + number), n=1 + number % 2) for number in range(4)]
    poison = ward.ask([7] * 10)
    others += [ward.ask([8, number], beams=2 * (number % 2)) for number in range(4)]
    ward.run(computes(poison, place))
    for group in others:
        ward.check_answer(group)
    assert isinstance(ward.failed.pop(poison), RequestPoisoned)
    assert not ward.failed
    assert ward.deaths <= 1 + MAX_DEATHS
    assert ward.given[poison][0] == fake.reference(poison.request, 0, 64)[: len(ward.given[poison][0])]


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("place", [0, 9, 14])
def test_whose_step_raises_alone_is_refused_at_once(
    fake: SimpleNamespace, workers: int, depth: int, place: int
) -> None:
    ward = Hospital(fake, workers, depth)
    ward.loss = Loss.RAISED
    others = [ward.ask([number] * (3 + number), n=1 + number % 2) for number in range(4)]
    culprit = ward.ask([7] * 10)
    others += [ward.ask([8, number], beams=2 * (number % 2)) for number in range(4)]
    ward.run(computes(culprit, place))
    for group in others:
        ward.check_answer(group)
    error = ward.failed.pop(culprit)
    assert isinstance(error, StepRaised)
    assert str(error).endswith("raised an error: why")
    assert not ward.failed
    assert ward.deaths == 2, "beside others, and alone"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_who_kills_after_each_token_is_refused(fake: SimpleNamespace, depth: int) -> None:
    ward = Hospital(fake, depth=depth)
    others = [ward.ask([number] * 3) for number in range(4)]
    poison = ward.ask([7] * 10, max_tokens=40)
    ward.run(decodes(poison))
    for group in others:
        ward.check_answer(group)
    assert isinstance(ward.failed[poison], RequestPoisoned)
    assert ward.deaths <= 1 + MAX_DEATHS


def test_two_that_kill_are_both_found(fake: SimpleNamespace) -> None:
    ward = Hospital(fake, workers=2)
    others = [ward.ask([number] * 3) for number in range(6)]
    first, second = ward.ask([7] * 4), ward.ask([8] * 9)
    fatal = [computes(first, 2), computes(second, 12)]
    ward.run(lambda flight: any(each(flight) for each in fatal))
    for group in others:
        ward.check_answer(group)
    assert set(ward.failed) == {first, second}
    assert ward.deaths <= 2 * (1 + MAX_DEATHS)


@pytest.mark.parametrize("policy", ["fcfs", "round-robin", "shortest"])
@pytest.mark.parametrize("seed", range(6))
def test_chance_refuses_nobody(fake: SimpleNamespace, seed: int, policy: str) -> None:
    """Workers die at any step, whatever is in it, again and again."""
    chance = Random(seed)
    limits = {"max_slots": chance.choice([2, 6]), "max_step_tokens": 64}
    ward = Hospital(fake, 1 + seed % 3, chance.choice([1, 2, 3]), policy, **limits)
    lengths = [1 + 3 * (number % 5) for number in range(12)]
    groups = [ward.ask([length] * length, n=1 + length % 2, max_tokens=50) for length in lengths]
    ward.run(at_intervals(chance))
    assert ward.deaths > 8
    for group in groups:
        ward.check_answer(group)


@pytest.mark.parametrize("seed", range(4))
def test_one_user_alone_is_not_refused_by_chance(fake: SimpleNamespace, seed: int) -> None:
    """Every death is one that the request was alone in: what it has computed meanwhile speaks for it."""
    chance = Random(seed)
    ward = Hospital(fake, max_model_len=400, num_blocks=200, max_step_tokens=400)
    group = ward.ask([3] * 6, max_tokens=300)
    ward.run(at_intervals(chance))
    assert ward.deaths > 8
    ward.check_answer(group)


def test_what_comes_from_outside_never_counts(fake: SimpleNamespace) -> None:
    """Stops and kills that say that they are such, at the same place of the same request, again and again."""
    ward = Hospital(fake)
    group = ward.ask([3] * 6)
    for _ in range(20):
        (scheduler,) = ward.workers
        scheduler.plan()
        ward.lose(scheduler, Loss.OUTSIDE)
        assert group.suspicion is None
    ward.run()
    ward.check_answer(group)


def test_a_suspect_stays_one_when_its_worker_is_stopped(fake: SimpleNamespace) -> None:
    ward = Hospital(fake)
    group = ward.ask([3] * 6)
    for loss in (Loss.DEATH, Loss.DEATH, Loss.OUTSIDE):
        (scheduler,) = ward.workers
        scheduler.plan()
        ward.lose(scheduler, loss)
    assert group.suspicion is not None
    assert group.suspicion.deaths == 1
    ward.run()
    ward.check_answer(group)


def test_others_wait_or_run_elsewhere_meanwhile(fake: SimpleNamespace) -> None:
    ward = Hospital(fake, workers=2)
    groups = [ward.ask([number] * 3) for number in range(4)]
    ward.step()
    first, second = ward.workers
    ward.lose(first)
    ((isolated, isolation),) = ward.fleet._isolated.items()
    assert isolated is not second, "an idle worker comes first"
    assert isolation.suspect is groups[0]
    late = [ward.ask([9, number]) for number in range(3)]
    assert {ward.fleet.home(group) for group in late} == {second}
    ward.run()
    for group in groups + late:
        ward.check_answer(group)


def test_a_busy_worker_is_set_aside_once_it_is_at_rest(fake: SimpleNamespace) -> None:
    ward = Hospital(fake, workers=2)
    groups = [ward.ask([number] * 3) for number in range(4)]
    ward.step()
    first, second = ward.workers
    del ward.workers[first]
    assert ward.fleet.remove_worker(first) == Outcome()
    assert second.paused
    assert second.plan() is None
    before = [list(group.sequences[0].tokens) for group in groups[1::2]]
    waits = ward.ask([9])
    ward.step()  # what was in flight is answered, and counts
    after = [list(group.sequences[0].tokens) for group in groups[1::2]]
    assert all(len(now) > len(then) for now, then in zip(after, before, strict=True))
    assert set(second.state.groups) == {groups[0]}
    assert ward.fleet.home(waits) is None
    ward.fleet.cancel(groups[1])  # held
    ward.fleet.cancel(groups[0])  # the suspect itself: the next one's turn
    assert set(second.state.groups) == {groups[2]}
    ward.run()
    for group in (groups[2], groups[3], waits):
        ward.check_answer(group)


def test_an_embedding_that_kills_is_refused(fake: SimpleNamespace) -> None:
    ward = Hospital(fake, max_step_tokens=4)
    poison = ward.ask([7] * 20, pooling=Pooling.MEAN, max_tokens=0)
    other = ward.ask([1] * 9)
    ward.run(computes(poison, 13))
    assert set(ward.failed) == {poison}
    ward.check_answer(other)
