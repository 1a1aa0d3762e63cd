"""Drafts: the same tokens in fewer steps, whoever guesses and however well; and when there are none."""

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core.draft_state import Forced
from scheduler_svc.core.drafters import DRAFTERS, SHORTEST, Drafter
from scheduler_svc.core.errors import RequestRefused, WorkerFault
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.plan import StepPlan, StepResult
from scheduler_svc.core.sequence import Sequence, SequenceGroup


class Oracle(Drafter):
    """Knows every answer, and says each token of it with the probability `right`."""

    def __init__(self, truth: Callable[[Sequence], list[int]]) -> None:
        super().__init__(longest=8, room=16)
        self.truth, self.right, self._chance = truth, 1.0, Random(7)

    def guess(self, sequence: Sequence, count: int) -> list[int]:
        output = len(sequence.tokens) - len(sequence.group.request.prompt)
        rest = self.truth(sequence)[output : output + count]
        return [each if self._chance.random() < self.right else self._chance.randrange(38) for each in rest]


@pytest.fixture
def oracle(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Oracle:
    """The drafter `oracle`."""
    known: dict[tuple[str, int], list[int]] = {}

    def truth(sequence: Sequence) -> list[int]:
        request = sequence.group.request
        key = (request.request_id, sequence.index)
        if key not in known:
            known[key] = fake.reference(request, sequence.index, sequence.group.limit)
        return known[key]

    found = Oracle(truth)
    monkeypatch.setitem(DRAFTERS, "oracle", found)
    return found


class One:
    """A scheduler and its strict worker."""

    def __init__(self, fake: SimpleNamespace, speculation: str, depth: int = 1, **limits: int) -> None:
        self.fake, self.depth = fake, depth
        self.fleet = Fleet(1000, speculation=speculation)
        self.limits = fake.limits(**limits)
        self.scheduler, _ = self.fleet.add_worker(self.limits)
        self.worker = fake.StrictWorker(self.limits)
        self.flights: deque[tuple[StepPlan, StepResult]] = deque()
        self.plans: list[StepPlan] = []
        self.given: dict[SequenceGroup, list[list[int]]] = {}

    def ask(self, prompt: list[int], n: int = 1, **fields: Any) -> SequenceGroup:
        request = self.fake.request(prompt, name=f"r{len(self.given)}", n=n, **fields)
        group, _ = self.fleet.accept(request)
        self.given[group] = [[] for _ in range(n)]
        return group

    def turn(self) -> bool:
        """Plan as far ahead as is allowed, and take one result; False at the end."""
        while self.scheduler.in_flight < self.depth and (plan := self.scheduler.plan()) is not None:
            self.plans.append(plan)
            self.flights.append((plan, self.worker.execute(plan)))
        if not self.flights:
            return False
        outcome = self.scheduler.complete(self.flights.popleft()[1])
        self.scheduler.check_integrity()
        for gain in outcome.gains:
            self.given[gain.group][gain.sequence_index].append(gain.token)
        return True

    def run(self) -> int:
        """Until all is done: everybody has got what the reference says. The steps that it took."""
        while self.turn():
            pass
        for group, outputs in self.given.items():
            for index, tokens in enumerate(outputs):
                assert tokens == self.fake.reference(group.request, index, self.limits.max_length)
        assert self.scheduler.held_blocks == 0
        return len([plan for plan in self.plans if plan.rows.slots])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("right", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_the_same_tokens_however_good_the_drafts(
    fake: SimpleNamespace, oracle: Any, depth: int, right: float, seed: int
) -> None:
    """Pools too small for all, budgets of few tokens, forks, stop tokens: in the end all as alone."""
    oracle.right = right
    random = Random(seed)
    limits = {
        "block_size": random.choice([1, 2, 4]),
        "num_blocks": random.choice([64, 96]),
        "max_slots": random.choice([1, 3, 6]),
        "max_step_tokens": random.choice([2, 5, 30]),
    }
    one = One(fake, "oracle", depth, **limits)
    for number in range(8):
        prompt = [random.randrange(3) for _ in range(random.randrange(1, 20))]
        stops = frozenset(random.sample(range(38), random.choice([0, 2])))
        one.ask(
            prompt,
            n=random.choice([1, 1, 2]),
            seed=number,
            max_tokens=random.choice([1, 2, 9, 0]),
            stop_token_ids=stops,
        )
        for _ in range(random.randrange(4)):
            one.turn()
    one.run()


@pytest.mark.parametrize("depth", [1, 3])
def test_a_prediction_is_tried(fake: SimpleNamespace, depth: int) -> None:
    """Whole, with some other tokens, and one of another text."""
    steps = []
    for change in ("none", "nothing", "some", "all"):
        one = One(fake, "ngram", depth)
        prompt, fields = [3, 1, 4, 1, 5], {"max_tokens": 40, "seed": 5}
        truth = fake.reference(fake.request(prompt, **fields), 0, one.limits.max_length)
        other = {"nothing": [], "some": range(7, 40, 9), "all": range(40)}.get(change, [])
        predicted = [token + (place in other) for place, token in enumerate(truth)]
        given = {} if change == "none" else {"predicted": array("i", predicted)}
        group = one.ask(prompt, **fields, **given)
        steps.append(one.run())
        told = group.predicted, group.predicted_rejected
        if change == "nothing":
            assert told[0] >= 30
            assert told[1] == 0
        elif change == "some":
            assert told[0] > 10
            assert told[1] > 3
        elif change == "none":
            assert told == (0, 0)
    assert steps[1] < steps[2] < steps[0]
    assert steps[3] <= steps[0] + 2


def test_a_prediction_with_unknown_tokens_is_refused(fake: SimpleNamespace) -> None:
    for token in (-1, 10**6):
        fleet = Fleet(1000, speculation="ngram")
        fleet.add_worker(fake.limits())
        _, outcome = fleet.accept(fake.request([1, 2], predicted=array("i", [3, token])))
        ((_, error),) = outcome.failed
        assert isinstance(error, RequestRefused)


def test_right_drafts_save_steps(fake: SimpleNamespace, oracle: Any) -> None:
    steps = {}
    for name in ("off", "oracle"):
        one = One(fake, name)
        one.ask([1, 2, 3], max_tokens=40)
        steps[name] = one.run()
    assert steps["off"] == 40
    (group,) = one.given
    assert group.drafts == group.drafts_held == 33
    # 1, then 1 + 4, 1 + 6, and 1 + 8 at a time.
    assert steps["oracle"] == 7


def test_wrong_drafts_become_rare(fake: SimpleNamespace, oracle: Any) -> None:
    oracle.right = 0.0
    one = One(fake, "oracle", max_model_len=200, num_blocks=100)
    group = one.ask([1, 2, 3], max_tokens=150)
    assert one.run() > 135
    drafts = sum(len(plan.draft_tokens) for plan in one.plans)
    assert 0 < drafts == group.drafts < 30
    assert group.drafts_held < 3


def test_a_stop_token_within_a_run_ends_the_sequence(fake: SimpleNamespace, oracle: Any) -> None:
    answer = fake.reference(fake.request([1, 2, 3], max_tokens=20), 0, 64)
    one = One(fake, "oracle")
    one.ask([1, 2, 3], max_tokens=20, stop_token_ids=frozenset([answer[3]]))
    cut = answer.index(answer[3]) + 1
    assert one.run() == 2
    assert list(one.given.values()) == [[answer[:cut]]]


def test_rejected_drafts_give_their_blocks_back(fake: SimpleNamespace, oracle: Any) -> None:
    oracle.right = 0.0
    one = One(fake, "oracle", block_size=2)
    group = one.ask([1, 2, 3], max_tokens=20)
    one.turn()
    assert one.scheduler.held_blocks == 2
    one.turn()  # position 3 and drafts up to 7
    assert len(one.plans[-1].draft_tokens) == 4
    assert one.scheduler.held_blocks == 3  # 5 tokens are known
    one.turn()
    assert one.plans[-1].table_cuts == ((group.sequences[0].slot,), (3,))
    one.run()


def test_drafts_take_no_block_that_others_need(fake: SimpleNamespace, oracle: Any) -> None:
    oracle.right = 0.0
    one = One(fake, "oracle", block_size=1, num_blocks=20)
    group = one.ask([0] * 8, max_tokens=10)
    one.turn()
    one.ask([1] * 9, max_tokens=1)
    one.turn()
    assert group.sequences[0].epoch == 0
    one.run()
    assert group.sequences[0].epoch == 1  # its own end, and no preemption


def test_a_busy_batch_gets_no_drafts(fake: SimpleNamespace, oracle: Any) -> None:
    users = oracle.room // (1 + SHORTEST) + 1
    one = One(fake, "oracle", max_slots=users, max_step_tokens=256, num_blocks=400)
    for number in range(users):
        one.ask([number % 30, 1], max_tokens=12)
    one.run()
    assert not any(plan.draft_tokens for plan in one.plans if len(plan.rows.slots) == users)
    one = One(fake, "oracle", max_slots=users - 1, max_step_tokens=256, num_blocks=400)
    for number in range(users - 1):
        one.ask([number, 1], max_tokens=12)
    one.run()
    widest = max(sum(plan.rows.counts) for plan in one.plans if plan.draft_tokens)
    assert oracle.room / 2 < widest <= oracle.room


def test_half_of_what_a_step_has_left_is_for_prefills(fake: SimpleNamespace, oracle: Any) -> None:
    one = One(fake, "oracle", max_step_tokens=8)
    one.ask([1, 2, 3], max_tokens=40)
    one.turn()
    one.ask([2] * 30, max_tokens=1)
    one.turn()
    assert one.plans[-1].rows.counts == (4, 4)


@pytest.mark.parametrize("depth", [2, 3])
def test_a_batch_becomes_busy_while_drafts_are_in_flight(
    fake: SimpleNamespace, oracle: Any, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """Who has drafts in flight is not planned further, even if it would get no more."""
    monkeypatch.setattr(oracle, "room", 12)
    oracle.right = 0.5
    one = One(fake, "oracle", depth, max_step_tokens=64, num_blocks=100)
    for number in range(4):
        one.ask([number, 1, 2], max_tokens=20)
        for _ in range(3):
            one.turn()
    one.run()
    assert any(plan.draft_tokens for plan in one.plans)


@pytest.mark.parametrize("depth", [2, 3])
def test_who_has_drafts_goes_together(fake: SimpleNamespace, oracle: Any, depth: int) -> None:
    """However they came: not in steps of their own, one while the other is in flight."""
    one = One(fake, "oracle", depth, max_step_tokens=64, num_blocks=100)
    for number in range(3):
        one.ask([number, 1, 2], max_tokens=50)
        one.turn()
    one.run()
    rows = [len(plan.rows.slots) for plan in one.plans if plan.draft_tokens]
    assert rows.count(3) >= len(rows) - 4


def test_who_has_no_drafts_is_planned_ahead(fake: SimpleNamespace) -> None:
    one = One(fake, "ngram", depth=2)
    one.ask([1, 2, 3, 4, 5], max_tokens=20)
    one.turn()
    assert one.scheduler.in_flight == 1
    one.run()


def test_nobody_is_asked_for_drafts_that_cannot_make_them(fake: SimpleNamespace) -> None:
    for can, some in ((False, False), (True, True)):
        one = One(fake, "draft", can_draft=can)
        one.ask([1, 2, 3], max_tokens=20)
        one.run()
        assert any(plan.draft_tokens for plan in one.plans) == some


@pytest.mark.parametrize("run", [(-1, 5, 5), (3, 99, 3), (-1, -1, -1)])
def test_a_result_that_cannot_be_is_refused(
    fake: SimpleNamespace, oracle: Any, monkeypatch: pytest.MonkeyPatch, run: tuple[int, ...]
) -> None:
    monkeypatch.setattr(oracle, "longest", 4)
    one = One(fake, "oracle")
    one.ask([1, 2, 3], max_tokens=20)
    one.turn()
    plan = one.scheduler.plan()
    assert plan is not None
    assert plan.rows.samples == (3,)
    with pytest.raises(WorkerFault, match="vocabulary"):
        one.scheduler.complete(StepResult(plan.step, run))


class Forcing:
    """What the worker says of the tokens that follow: the truth, always as many tokens."""

    def __init__(self, fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        foresee = fake.StrictWorker.foresee

        def told(worker: Any, held: Any) -> Forced:
            return Forced(len(held.tokens), foresee(worker, held, count))

        monkeypatch.setattr(fake.StrictWorker, "foreseen", told)


def compiled(one: One) -> None:
    """Until the grammars of what is asked have been compiled."""
    one.turn()
    for number in one.worker.compile():
        one.scheduler.compiled(number)


@pytest.mark.parametrize(("depth", "steps"), [(1, 7), (2, 8)])
def test_forced_tokens_need_no_speculation(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, depth: int, steps: int
) -> None:
    Forcing(fake, monkeypatch, 7)
    one = One(fake, "off", depth, max_slots=4)
    group = one.ask([1, 2, 3], max_tokens=41, grammar=b"x")
    compiled(one)
    assert one.run() == steps
    assert group.forced_tokens == group.drafts == group.drafts_held > 25
    assert 0 < group.drafted_rows < steps


@pytest.mark.parametrize("count", [0, 1])
def test_short_runs_are_no_drafts(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    Forcing(fake, monkeypatch, count)
    one = One(fake, "off", 2)
    group = one.ask([1, 2, 3], max_tokens=20, grammar=b"x")
    compiled(one)
    one.run()
    assert not group.drafts


@pytest.mark.parametrize("seed", range(8))
def test_forced_tokens_beside_all_else(
    fake: SimpleNamespace, oracle: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """With drafts of another source, small pools and budgets, forks and ends within a run."""
    random = Random(seed)
    Forcing(fake, monkeypatch, random.choice([2, 5, 50]))
    oracle.right = random.choice([0.0, 0.6])
    limits = {
        "block_size": random.choice([1, 2, 4]),
        "num_blocks": random.choice([64, 96]),
        "max_slots": random.choice([1, 3, 6]),
        "max_step_tokens": random.choice([2, 5, 30]),
    }
    one = One(fake, random.choice(["off", "oracle"]), random.choice([1, 2, 3]), **limits)
    for number in range(8):
        stops = frozenset(random.sample(range(38), random.choice([0, 2])))
        one.ask(
            [random.randrange(3) for _ in range(random.randrange(1, 20))],
            n=random.choice([1, 1, 2]),
            seed=number,
            max_tokens=random.choice([1, 2, 9, 0]),
            stop_token_ids=stops,
            grammar=random.choice([b"", b"x", b"y"]),
        )
        compiled(one)
    while one.turn():
        for number in one.worker.compile():
            one.scheduler.compiled(number)
    one.run()


def test_forced_tokens_leave_half_of_a_step_to_others(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    Forcing(fake, monkeypatch, 60)
    one = One(fake, "off", max_step_tokens=22, max_slots=6, num_blocks=200, max_model_len=100)
    for seed in range(2):
        one.ask([1, 2, 3], seed=seed, max_tokens=90, grammar=b"x")
    compiled(one)
    one.run()
    assert max(len(plan.draft_tokens) for plan in one.plans) == 10


@pytest.mark.parametrize("forced", [Forced(3, [1, 1000]), Forced(3, [-1, 1]), Forced(0, [1, 2])])
@pytest.mark.parametrize("row", [0, 5])
def test_forced_tokens_that_cannot_be(bench: Any, row: int, forced: Forced) -> None:
    world = bench()
    world.arrive([1, 2, 3])
    result = world.worker.execute(world.plan())
    with pytest.raises(WorkerFault, match="forced"):
        world.scheduler.check(replace(result, forced={row: forced}))
