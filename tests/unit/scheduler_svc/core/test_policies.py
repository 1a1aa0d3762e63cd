"""What each policy promises to the requests of one user, on one worker in lock step."""

from collections import Counter
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_svc.core import policies
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.planner import plan_step
from scheduler_svc.core.policies import POLICIES
from scheduler_svc.core.sequence import SequenceGroup, State

LOADS = st.lists(
    st.fixed_dictionaries(
        {
            "max_tokens": st.integers(1, 12),
            "priority": st.integers(-2, 2),
            "deadline": st.sampled_from([1.0, 2.0, 3.0, inf]),
        }
    ),
    min_size=2,
    max_size=12,
)


class Line:
    """A fleet of one worker with few slots; notes who began and ended when."""

    def __init__(self, fake: SimpleNamespace, policy: str, **limits: int) -> None:
        self.fake = fake
        self.fleet = Fleet(1000, policy)
        limits = {"max_slots": 1, "num_blocks": 64, **limits}
        self.scheduler, _ = self.fleet.add_worker(fake.limits(**limits))
        self.worker = fake.StrictWorker(self.scheduler.limits)
        self.began: list[str] = []
        self.ended: list[str] = []
        self.tokens: Counter[str] = Counter()
        """Output by tenant."""

    def ask(self, name: str, prompt: int = 4, **fields: Any) -> SequenceGroup:
        fields = {"max_tokens": 4, **fields}
        return self.fleet.accept(self.fake.request([len(name)] * prompt, name, **fields))[0]

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            if (plan := self.scheduler.plan()) is None:
                return
            self.began += [new.request.request_id for new in plan.new_slots]
            outcome = self.scheduler.complete(self.worker.execute(plan))
            self.fleet.settle(self.scheduler, outcome)
            self.scheduler.check_integrity()
            for gain in outcome.gains:
                self.tokens[gain.group.request.tenant] += 1
                if gain.finish:
                    self.ended.append(gain.group.request.request_id)

    def finish(self) -> None:
        self.step(10_000)
        assert self.scheduler.idle


def test_first_come_first_served(fake: SimpleNamespace) -> None:
    line = Line(fake, "fcfs")
    for name, length in (("a", 9), ("b", 1), ("c", 5)):
        line.ask(name, max_tokens=length, priority=-length, deadline=float(length))
    line.finish()
    assert line.began == ["a", "b", "c"]


def test_shortest_first_but_whoever_runs_stays(fake: SimpleNamespace) -> None:
    line = Line(fake, "shortest")
    line.ask("running", max_tokens=40)
    line.step()
    for name, length in (("long", 30), ("short", 4), ("middle", 15)):
        line.ask(name, max_tokens=length)
    line.finish()
    assert line.began == ["running", "short", "middle", "long"]


def test_a_long_one_is_overtaken_a_bounded_number_of_times(fake: SimpleNamespace) -> None:
    line = Line(fake, "shortest")
    line.ask("running", max_tokens=1)
    line.ask("long", max_tokens=30)
    for number in range(200):  # a new short one whenever one could begin
        line.ask(f"short-{number}", max_tokens=1)
        line.step()
    overtaken = line.began.index("long") - 1
    assert 20 <= overtaken <= 29


def test_lower_priority_makes_way_and_loses_nothing(fake: SimpleNamespace) -> None:
    line = Line(fake, "priority", max_slots=2)
    low = line.ask("low", max_tokens=20, priority=5)
    line.ask("middle", max_tokens=20, priority=3)
    line.step(4)
    line.ask("equal", priority=5)
    line.step()
    assert low.sequences[0].state is State.DECODE
    line.ask("high", priority=-1)
    line.step()
    assert low.sequences[0].state is State.PREEMPTED
    line.finish()
    assert line.ended == ["high", "middle", "low", "equal"]
    assert list(low.sequences[0].tokens[4:]) == fake.reference(low.request, 0, 64)


def test_whose_last_token_is_in_flight_is_not_made_to_compute_all_again(fake: SimpleNamespace) -> None:
    line = Line(fake, "priority")
    low = line.ask("low", max_tokens=2, priority=5)
    plans = [line.scheduler.plan(), line.scheduler.plan()]
    line.ask("high")
    assert line.scheduler.plan() is None
    for plan in plans:
        line.fleet.settle(line.scheduler, line.scheduler.complete(line.worker.execute(plan)))
    assert low.sequences[0].state is State.DONE
    line.finish()
    assert line.ended == ["high"]


@pytest.mark.parametrize("policy", ["priority", "deadline", "shortest"])
def test_the_urgent_do_not_wait_for_a_long_prompt_of_others(fake: SimpleNamespace, policy: str) -> None:
    line = Line(fake, policy, max_slots=2, max_step_tokens=4)
    line.ask("long", prompt=40, priority=5, deadline=9.0)
    line.step(2)
    line.ask("urgent", priority=0, deadline=1.0)
    line.step(1)
    assert line.began == ["long", "urgent"]
    line.step(3)
    assert line.ended == ["urgent"]


def test_whose_prefix_the_urgent_need_is_as_urgent(fake: SimpleNamespace) -> None:
    line = Line(fake, "priority", max_slots=8, max_step_tokens=8, num_blocks=400)
    shared = [1] * 40
    line.fleet.accept(fake.request(shared, "maker", max_tokens=1, priority=5))
    line.step(2)
    line.fleet.accept(fake.request(shared, "urgent", max_tokens=1, priority=0))
    for number in range(20):  # more urgent than the maker, as much as a step computes
        line.ask(f"between-{number}", prompt=8, max_tokens=1, priority=3)
        line.step()
    assert line.ended.index("urgent") <= 2


@pytest.mark.parametrize(("policy", "field"), [("priority", "priority"), ("deadline", "deadline")])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(load=LOADS)
def test_they_end_in_order_whenever_they_came(
    fake: SimpleNamespace, policy: str, field: str, load: list[dict[str, Any]]
) -> None:
    line = Line(fake, policy)
    for number, fields in enumerate(load):
        line.ask(str(number), **fields)
    line.finish()
    order = sorted(range(len(load)), key=lambda number: (load[number][field], number))
    assert line.ended == [str(number) for number in order]


def test_the_more_urgent_preempts(fake: SimpleNamespace) -> None:
    line = Line(fake, "deadline")
    line.ask("sometime", max_tokens=20)
    line.step(3)
    line.ask("later", deadline=9.0)
    line.step(2)
    line.ask("now", deadline=3.0)
    line.finish()
    assert line.ended == ["now", "later", "sometime"]


def test_turns_go_round(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "QUANTUM", 4)
    line = Line(fake, "round-robin")
    groups = [line.ask(name, max_tokens=10) for name in "abc"]
    line.finish()
    assert line.began == [*"abc", *"abc", *"abc"]
    for group in groups:
        assert list(group.sequences[0].tokens[4:]) == fake.reference(group.request, 0, 64)


def test_alone_nobody_makes_way(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "QUANTUM", 4)
    line = Line(fake, "round-robin", max_slots=2)
    line.ask("a", max_tokens=30)
    line.ask("b", max_tokens=30)
    line.finish()
    assert line.began == ["a", "b"]


def test_waiting_for_another_ones_prefix_costs_no_place_in_the_line(fake: SimpleNamespace) -> None:
    line = Line(fake, "round-robin", max_slots=2, max_step_tokens=16)
    shared = [1] * 10
    for name, prompt in (("maker", shared), ("follower", shared), ("later", [2] * 4), ("last", [3] * 4)):
        line.fleet.accept(fake.request(prompt, name, max_tokens=4))
    line.finish()
    assert line.began == ["maker", "later", "follower", "last"]


def test_prefills_take_the_budget_in_turns(fake: SimpleNamespace) -> None:
    firsts = {}
    for policy in ("fcfs", "round-robin"):
        line = Line(fake, policy, max_slots=2, max_step_tokens=4)
        line.ask("a", prompt=30)
        line.ask("bb", prompt=30)
        line.step()
        line.scheduler.state.batch.admit(line.scheduler.state.waiting.pop(), [])  # both have begun
        chosen = [plan_step(line.scheduler.state, step, at_rest=False).sequences[0].age[1] for step in (2, 3)]
        firsts[policy] = chosen
    assert firsts["fcfs"] == [1, 1]
    assert sorted(firsts["round-robin"]) == [1, 2]


def test_decodes_are_grouped_by_their_blocks(fake: SimpleNamespace) -> None:
    line = Line(fake, "block-count", max_slots=4, num_blocks=64, max_step_tokens=64)
    for number, prompt in enumerate((17, 2, 13, 3)):
        line.ask("x" * number, prompt=prompt, max_tokens=9)
    line.step()
    plan = line.scheduler.plan()
    assert plan is not None
    assert plan.rows.starts == (2, 3, 13, 17)
    assert plan.rows.starts == tuple(sorted(plan.rows.starts))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_everybody(fake: SimpleNamespace, policy: str) -> None:
    line = Line(fake, policy, max_slots=3, num_blocks=12)
    groups = [
        line.ask("r" * number, prompt=1 + number, max_tokens=20 - number, tenant="ab"[number % 2])
        for number in range(12)
    ]
    line.finish()
    for group in groups:
        prompt = len(group.request.prompt)
        assert list(group.sequences[0].tokens[prompt:]) == fake.reference(group.request, 0, 48)
