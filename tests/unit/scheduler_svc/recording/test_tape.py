"""Random programs on tape: whatever happens, the same calls from any state on give the same plans."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from ops.replay.found import Found
from ops.replay.plans import Replayed
from proto.recording_pb2 import Recording
from proto.sampling import greedy
from proto.sampling_pb2 import Grammar
from scheduler_svc.core import grammars, policies, shares
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.plan import Outcome, StepResult
from scheduler_svc.core.plan import StepPlan as CorePlan
from scheduler_svc.core.policies import POLICIES
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.recording import tape
from scheduler_svc.recording.tape import RecordedScheduler, Tape
from scheduler_svc.wire import plan_to
from tests.support.programs import World, busy_program, play


@pytest.fixture(autouse=True)
def small_scale(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Many segments, and turns that end."""
    monkeypatch.setattr(tape, "SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(policies, "QUANTUM", 4)
    monkeypatch.setattr(shares, "TURN", 4)
    monkeypatch.setattr(grammars, "MOST_IDLE", 1)
    return


@pytest.fixture
def with_messages(fake: SimpleNamespace) -> SimpleNamespace:
    """The same, with requests whose parameters are messages, as they are in a process."""

    def request(*args: Any, **fields: Any) -> Request:
        made = fake.request(*args, **fields)
        grammar = Grammar(text=made.grammar.decode()).SerializeToString() if made.grammar else b""
        return replace(made, sampling=greedy(temperature=1, seed=made.sampling), grammar=grammar)

    def reference(request: Request, *args: Any) -> Any:
        return fake.reference(replace(request, sampling=request.sampling.seed), *args)  # type: ignore[attr-defined]

    def worker(limits: Any) -> Any:
        return fake.StrictWorker(limits, seed_of=lambda sampling: sampling.seed)

    return SimpleNamespace(
        **{**vars(fake), "request": request, "reference": reference, "StrictWorker": worker}
    )


class Told(RecordedScheduler):
    """Puts on tape what the link to a worker puts there."""

    every: list["Told"]
    message_of: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.every.append(self)

    def plan(self) -> CorePlan | None:
        plan = super().plan()
        if plan is not None:
            self.tape.planned(plan_to(plan))
        return plan

    def complete(self, result: StepResult) -> Outcome:
        self.tape.came(self.message_of(result))
        return super().complete(result)

    def check_integrity(self) -> None:
        """As where it serves, nobody looks while it is busy. The replay does, which must change nothing."""


def replayed(one: Tape) -> Found:
    recording = Recording.FromString(one.take().recording().SerializeToString())
    return Replayed(recording).run()


@pytest.mark.parametrize(
    ("seed", "policy"), [(number, list(POLICIES)[number % len(POLICIES)]) for number in range(12)]
)
def test_a_replay_makes_the_same_plans(with_messages: SimpleNamespace, seed: int, policy: str) -> None:
    random = Random(seed)
    limits = {
        "num_blocks": random.choice([16, 32, 80]),
        "block_size": 4,
        "max_slots": random.choice([2, 4, 12]),
        "max_step_tokens": random.choice([3, 16, 64]),
        "host_blocks": random.choice([0, 4, 40]),
        "window": random.choice([0, 0, 3, 16]),
    }
    speculation = random.choice(["off", "ngram", "draft"])
    world = World(with_messages, limits, random.choice([1, 2, 3]), policy, speculation)
    every: list[Told] = []
    made = type("Made", (Told,), {"every": every, "message_of": staticmethod(with_messages.message_of)})
    world.fleet = Fleet(1000, policy, speculation, make=made)
    world.join(None)
    play(world, busy_program(random, with_messages.POISON))
    assert any(scheduler.tape.segments > 2 for scheduler in every)
    for scheduler in every:
        found = replayed(scheduler.tape)
        assert found.lines == []
        assert found.steps > 0 or not scheduler.step


@pytest.mark.parametrize("seed", range(3))
def test_a_replay_needs_nothing_of_other_workers(with_messages: SimpleNamespace, seed: int) -> None:
    limits = {"num_blocks": 80, "block_size": 4, "max_slots": 12, "max_step_tokens": 3}
    world = World(with_messages, limits, 2, "round-robin")
    every: list[Told] = []
    made = type("Made", (Told,), {"every": every, "message_of": staticmethod(with_messages.message_of)})
    world.fleet = Fleet(1000, "round-robin", make=made)
    for _ in range(2):
        world.join(None)
    play(world, busy_program(Random(seed), with_messages.POISON))
    assert [replayed(scheduler.tape).lines for scheduler in every] == [[]] * len(every)


def test_samples_that_share_a_prompt_are_on_tape_once(with_messages: SimpleNamespace) -> None:
    one = RecordedScheduler(with_messages.limits(), 16).tape
    one.submitted(SequenceGroup(with_messages.request([1] * 500, n=128), 1))
    assert one._segments[-1].bytes < 2 * len(one._segments[-1].events[-1][2].encode())
