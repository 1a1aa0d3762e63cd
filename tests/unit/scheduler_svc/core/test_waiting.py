"""The queue of one worker: whose turn it is, and what that costs when many wait."""

from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.core.shares import TURN
from scheduler_svc.core.waiting import FEW
from tests.support.counted import calls_of


class Queued:
    """A fleet of one worker with two slots, for which more requests wait."""

    def __init__(self, fake: SimpleNamespace, policy: str = "fcfs") -> None:
        self.fake = fake
        self.fleet = Fleet(64, policy)
        self.scheduler: Scheduler = self.fleet.add_worker(fake.limits(max_slots=2, num_blocks=64))[0]
        self.worker = fake.StrictWorker(self.scheduler.limits)

    def arrive(self, tenant: str = "", **fields: Any) -> SequenceGroup:
        request = self.fake.request([1, 2, 3], tenant=tenant, **fields)
        return self.fleet.accept(request)[0]

    def step(self) -> None:
        plan = self.scheduler.plan()
        assert plan is not None
        outcome = self.scheduler.complete(self.worker.execute(plan))
        self.fleet.settle(self.scheduler, outcome)

    @property
    def queue(self) -> Any:
        return self.scheduler.state.waiting


@pytest.mark.parametrize("policy", ["fcfs", "round-robin", "priority"])
@pytest.mark.parametrize(("tenants", "users"), [(1, 1), (1, 0), (0, 1)])
def test_a_step_does_as_much_however_many_wait(
    fake: SimpleNamespace, policy: str, tenants: int, users: int
) -> None:
    """`tenants`, `users`: how many; 0: one for each request."""
    most = []
    for waiting in (60, 1500):
        queued = Queued(fake, policy)
        for number in range(waiting):
            queued.arrive(
                str(number % (tenants or waiting)), user=str(number % (users or waiting)), max_tokens=4
            )
        queued.step()  # takes note of all who are new
        most.append(max(calls_of(queued.step) for _ in range(TURN - 4)))
    assert most[1] < 1.5 * most[0]


def test_who_comes_first_is_who_has_the_lowest_claim(fake: SimpleNamespace) -> None:
    queued = Queued(fake)
    for number in range(60):
        queued.arrive(f"t{number % 7}", user=f"u{number % 3}", max_tokens=2 + number % 5)
    while not queued.scheduler.idle:
        queued.step()
        queued.queue.check_integrity()
    assert not queued.queue._queues
    assert not queued.scheduler.state.shares.tenants.waiting


def test_those_who_give_up_behind_one_that_waits_leave_nothing(fake: SimpleNamespace) -> None:
    queued = Queued(fake)
    for _ in range(4):
        queued.arrive()
    queued.step()
    for _ in range(20 * FEW):
        queued.fleet.cancel(queued.arrive())
    ((_, queue),) = queued.queue._queues.items()
    assert len(queue._heap) <= FEW
    assert len(queue.sequences()) == 2


def test_users_who_give_up_leave_nothing(fake: SimpleNamespace) -> None:
    queued = Queued(fake)
    for number in range(4):
        queued.arrive("steady", user=str(number))
    queued.step()
    for number in range(20 * FEW):
        queued.fleet.cancel(queued.arrive(f"t{number % 50}", user=f"u{number}"))
    tenants = queued.scheduler.state.shares.tenants
    assert len(queued.queue._queues) == 4
    assert list(tenants.members) == ["steady"]
    assert len(tenants.waiting) == 1
    assert len(tenants.waiting._heap) <= 4


def test_claims_that_change_often_do_not_fill_the_heaps(fake: SimpleNamespace) -> None:
    queued = Queued(fake)
    for number in range(400):
        queued.arrive(f"t{number % 4}", user=f"u{number % 8}", max_tokens=1)
    tenants = queued.scheduler.state.shares.tenants
    for _ in range(150):
        queued.step()
        assert all(len(each.waiting._heap) <= 9 for each in (tenants, *tenants.members.values()))


def test_users_are_looked_at_in_turn(fake: SimpleNamespace) -> None:
    queued = Queued(fake)
    groups = [queued.arrive("t", user=str(number)) for number in range(6)]
    queued.step()
    waiting = [group.sequences[0] for group in groups[2:]]
    assert [queued.queue.in_turn() for _ in range(8)] == waiting * 2
    queued.fleet.cancel(groups[3])
    assert [queued.queue.in_turn() for _ in range(3)] == [waiting[0], *waiting[2:]]


def test_one_that_gives_up_while_it_waits_for_a_prefix_does_not_come_back(fake: SimpleNamespace) -> None:
    fleet = Fleet(64)
    scheduler, _ = fleet.add_worker(fake.limits(num_blocks=64, max_step_tokens=64))
    maker, follower = (
        fleet.accept(fake.request([1] * 30, tenant=tenant, max_tokens=2))[0] for tenant in ("maker", "gone")
    )
    plan = scheduler.plan()
    assert plan is not None
    assert scheduler.state.unfinished.followers() == follower.sequences
    fleet.cancel(follower)
    fleet.cancel(maker)  # upon which all who wait for it would go on
    assert not scheduler.state.waiting._queues
    assert not scheduler.state.shares.tenants.waiting
