"""The queue of one worker: whose turn it is, and what that costs when many wait."""

from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core import shares
from scheduler_svc.core.account import Account
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.integrity import _is_due_to_wait
from scheduler_svc.core.policies import POLICIES
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence, SequenceGroup
from scheduler_svc.core.shares import TURN
from scheduler_svc.core.waiting import FEW, UserQueue
from tests.support.counted import calls_of


class Queued:
    """A fleet of one worker with two slots, for which more requests wait."""

    def __init__(self, fake: SimpleNamespace, policy: str = "fcfs", max_slots: int = 2) -> None:
        self.fake = fake
        self.fleet = Fleet(64, policy)
        limits = fake.limits(max_slots=max_slots, num_blocks=64)
        self.scheduler: Scheduler = self.fleet.add_worker(limits)[0]
        self.worker = fake.StrictWorker(self.scheduler.limits)

    def arrive(self, tenant: str = "", prompt: tuple[int, ...] = (1, 2, 3), **fields: Any) -> SequenceGroup:
        request = self.fake.request(prompt, tenant=tenant, **fields)
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


def test_those_that_wait_are_seldom_looked_at_when_others_come() -> None:
    looks, queue = [], UserQueue()
    waits = property(lambda self: looks.append(self) or True)
    each = type("Waits", (SimpleNamespace,), {"waits": waits})
    for number in range(100 * FEW):
        queue.push(each(age=(0.0, number, 0)))
    assert len(looks) <= 2 * 100 * FEW


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
    queued.queue.drain()
    assert not any(each.waiting._heap for each in (tenants, *tenants.members.values()))


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


@pytest.mark.parametrize("looks", [False, True])
def test_a_look_at_the_queue_changes_nothing(fake: SimpleNamespace, looks: bool) -> None:
    """A replay looks whether its first state is in order, and nobody did when it was recorded."""
    queued = Queued(fake)
    for _ in range(2):
        queued.arrive("had")
    queued.step()
    queued.fleet.cancel(queued.arrive("had"))
    if looks:
        queued.scheduler.check_integrity()
    waits = [queued.arrive(tenant).sequences[0] for tenant in ("came", "had")]
    assert [queued.queue.in_turn() for _ in range(3)] == [*waits, waits[0]]


@pytest.mark.parametrize("seed", range(16))
def test_the_heaps_agree_with_a_plain_list(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(shares, "TURN", 3)
    random = Random(seed)
    queued = Queued(fake, list(POLICIES)[seed % len(POLICIES)], max_slots=random.choice([1, 3, 6]))
    scheduler, waited = queued.scheduler, 0
    for _ in range(250):
        groups = list(scheduler.state.groups)
        event = random.choice(["arrive"] * 4 + ["step"] * 6 + ["cancel", "end", "move"])
        if event == "arrive" and len(groups) < 30:
            queued.arrive(
                random.choice("aabcd"),
                tuple(random.choice([1, 2]) for _ in range(random.choice([3, 20]))),
                user=random.choice("xxyz"),
                n=random.choice([1, 1, 3]),
                beams=random.choice([0, 0, 0, 2]),
                max_tokens=random.choice([1, 5, 15]),
                priority=random.choice([0, 1]),
            )
        elif event == "step" and groups:
            queued.step()
        elif event == "cancel" and groups:
            queued.fleet.cancel(random.choice(groups))
        elif event == "end" and (samples := [each for each in groups if each.request.beams is None]):
            queued.fleet.end_sequence(random.choice(samples), 0)
        elif event == "move":  # to the same worker, as there is no other
            some = partial(scheduler.withdraw_waiting, random.random())
            for group in random.choice([some, scheduler.evacuate])():
                scheduler.submit(group)
        waited += compare(scheduler)
    assert waited > 100


def compare(scheduler: Scheduler) -> int:
    """The queue against all that wait, looked at one by one. Returns their number."""
    scheduler.check_integrity()
    state = scheduler.state
    queue, tenants, followers = state.waiting, state.shares.tenants, state.unfinished.followers()
    every = [each for group in state.groups for each in group.alive() if _is_due_to_wait(each)]
    waiting = sorted({*every}.difference(followers), key=whose_turn)
    firsts: dict[Account, Sequence] = {}
    by_user: dict[Account, Sequence] = {}
    for each in waiting:
        firsts.setdefault(each.group.account.owner, each)
        by_user.setdefault(each.group.account, each)
    plain = list(firsts.values())
    assert queue.peek() is (plain[0] if plain else None)
    assert queue.heads() == plain[:1] + [each for each in plain[1:] if each.group.account.owner.slots]
    once = [queue.in_turn() for _ in by_user]
    assert len(once) == len({*once})
    assert {*once} == {*by_user.values()}
    for parent in (tenants, *tenants.members.values()):
        assert all(entry == (*member.claim, member) for member, entry in parent.waiting._entries.items())
        assert {*parent.waiting._entries.values()} <= {*parent.waiting._heap}
    return len(waiting)


def whose_turn(sequence: Sequence) -> tuple[Any, ...]:
    user = sequence.group.account
    return user.owner.claim, user.claim, sequence.age


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
