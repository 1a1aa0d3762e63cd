"""Requests and workers find each other; losses of workers are survived, unless a request causes them."""

from types import SimpleNamespace

import pytest

from scheduler_svc.core.errors import RequestRefused
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import Outcome
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import State
from tests.support.programs import images_at


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(token_budget=64)


def step(fleet: Fleet, scheduler: Scheduler, worker: object) -> Outcome:
    plan = scheduler.plan()
    assert plan is not None
    outcome = scheduler.complete(worker.execute(plan))  # type: ignore[attr-defined]
    fleet.settle(scheduler, outcome)
    return outcome


def test_the_least_loaded_worker_is_chosen(fake: SimpleNamespace, fleet: Fleet) -> None:
    small, _ = fleet.add_worker(fake.limits(max_slots=2))
    large, _ = fleet.add_worker(fake.limits(max_slots=4))
    for _ in range(6):
        fleet.accept(fake.request([1]))
    assert (small.unfinished, large.unfinished) == (2, 4)


def test_a_request_goes_where_it_fits(fake: SimpleNamespace, fleet: Fleet) -> None:
    small, _ = fleet.add_worker(fake.limits(num_blocks=2))
    large, _ = fleet.add_worker(fake.limits(num_blocks=8))
    for _ in range(4):
        fleet.accept(fake.request([1] * 20, max_tokens=2))
    assert (small.unfinished, large.unfinished) == (0, 4)
    _, outcome = fleet.accept(fake.request([1] * 32))
    assert isinstance(outcome.failed[0][1], RequestRefused)


def test_beams_go_where_there_are_slots_for_all(fake: SimpleNamespace, fleet: Fleet) -> None:
    fleet.add_worker(fake.limits(num_blocks=16, max_slots=2))
    wide, _ = fleet.add_worker(fake.limits(num_blocks=14, max_slots=4))
    _, outcome = fleet.accept(fake.request([1], max_tokens=4, beams=4))
    assert outcome == Outcome()
    assert wide.unfinished == 1


def test_without_a_worker_requests_wait(fake: SimpleNamespace, fleet: Fleet) -> None:
    waits, outcome = fleet.accept(fake.request([1]))
    gone, _ = fleet.accept(fake.request([2], n=2))
    ended, _ = fleet.accept(fake.request([3], n=2))
    too_long, _ = fleet.accept(fake.request([4] * 64))
    assert outcome == Outcome()
    fleet.cancel(gone)
    fleet.end_sequence(ended, 0)
    fleet.end_sequence(ended, 1)
    scheduler, outcome = fleet.add_worker(fake.limits())
    assert [group for group, _ in outcome.failed] == [too_long]
    assert scheduler.unfinished == 1
    assert waits.limit == 64


def test_a_worker_that_joins_takes_its_share_of_what_waits(fake: SimpleNamespace, fleet: Fleet) -> None:
    first, _ = fleet.add_worker(fake.limits(max_slots=2))
    groups = [fleet.accept(fake.request([1] * 5, n=2))[0] for _ in range(6)]
    first.plan()
    second, _ = fleet.add_worker(fake.limits(max_slots=2))
    assert (first.unfinished, second.unfinished) == (3, 3)
    assert groups[0].sequences[0].state is State.PREFILL or groups[0].sequences[0].state is State.DECODE
    first.check_integrity()
    second.check_integrity()


def test_what_a_worker_that_joins_does_not_take_stays_where_it_is(
    fake: SimpleNamespace, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes those that have waited longest. To place ten thousand anew would take longer than a lease."""
    for _ in range(3):
        fleet.add_worker(fake.limits())
    groups = [fleet.accept(fake.request([1]))[0] for _ in range(120)]
    placed, choose = [], fleet._router.choose
    monkeypatch.setattr(fleet._router, "choose", lambda group: (placed.append(group), choose(group))[1])
    joined, _ = fleet.add_worker(fake.limits())
    assert placed == groups[:30]
    assert all(fleet.home(group) is joined for group in placed)


def test_it_takes_its_share_of_those_that_were_preempted_too(fake: SimpleNamespace) -> None:
    fleet = Fleet(64, "round-robin")
    first, _ = fleet.add_worker(fake.limits(max_slots=1))
    workers = {first: fake.StrictWorker(first.limits)}
    groups = [fleet.accept(fake.request([number], max_tokens=60))[0] for number in range(4)]
    while not all(group.sequences[0].output_tokens for group in groups):
        step(fleet, first, workers[first])
    second, _ = fleet.add_worker(fake.limits(max_slots=1))
    assert (first.unfinished, second.unfinished) == (2, 2)
    workers[second] = fake.StrictWorker(second.limits)
    for scheduler, worker in workers.items():
        while not scheduler.idle:
            step(fleet, scheduler, worker)
    for group in groups:
        assert list(group.sequences[0].tokens[1:]) == fake.reference(group.request, 0, 64)


def test_a_lost_worker_hands_everything_to_the_next(fake: SimpleNamespace, fleet: Fleet) -> None:
    first, _ = fleet.add_worker(fake.limits())
    worker = fake.StrictWorker(first.limits)
    groups = [fleet.accept(fake.request([number], max_tokens=9, n=2))[0] for number in range(3)]
    for _ in range(4):
        step(fleet, first, worker)
    first.plan()
    known = [list(sequence.tokens) for group in groups for sequence in group.sequences]
    assert fleet.remove_worker(first) == Outcome()
    second, _ = fleet.add_worker(fake.limits())
    assert [list(sequence.tokens) for group in groups for sequence in group.sequences] == known
    worker = fake.StrictWorker(second.limits)
    while not second.idle:
        step(fleet, second, worker)
    for group in groups:
        for sequence in group.sequences:
            assert list(sequence.tokens[1:]) == fake.reference(group.request, sequence.index, 64)


def test_an_answer_goes_on_with_a_worker_of_the_same_fingerprint_alone(
    fake: SimpleNamespace, fleet: Fleet
) -> None:
    first, _ = fleet.add_worker(fake.limits(fingerprint="a"))
    worker = fake.StrictWorker(first.limits)
    begun, _ = fleet.accept(fake.request([1], max_tokens=9))
    for _ in range(4):
        step(fleet, first, worker)
    fresh, _ = fleet.accept(fake.request([2], max_tokens=9))
    known = list(begun.sequences[0].tokens)
    assert len(known) > 1
    assert fleet.remove_worker(first) == Outcome()
    assert fleet.stranded() == [], "there is no worker at all: it waits for one, as any request"
    other, _ = fleet.add_worker(fake.limits(fingerprint="b"))
    assert fleet.home(fresh) is other, "nothing of its answer is known yet"
    assert fleet.home(begun) is None
    assert fleet.stranded() == [begun]
    assert list(begun.sequences[0].tokens) == known
    same, _ = fleet.add_worker(fake.limits(fingerprint="a"))
    assert fleet.home(begun) is same
    assert fleet.stranded() == []


def test_a_request_for_an_adapter_goes_to_a_worker_that_has_it(fake: SimpleNamespace, fleet: Fleet) -> None:
    plain, _ = fleet.add_worker(fake.limits(fingerprint="w"))
    group, _ = fleet.accept(fake.request([1], max_tokens=9, adapter="sql"))
    assert fleet.home(group) is None
    assert fleet.stranded() == [group]
    other, _ = fleet.add_worker(fake.limits(fingerprint="w", adapters={"poet": "w-p"}))
    assert fleet.home(group) is None
    assert fleet.adapters == ["poet"]
    both, _ = fleet.add_worker(fake.limits(fingerprint="w", adapters={"poet": "w-p", "sql": "w-s"}))
    assert fleet.home(group) is both
    assert fleet.stranded() == []
    assert fleet.adapters == ["poet", "sql"]
    for _ in range(9):  # however much it has to do
        group, _ = fleet.accept(fake.request([1], max_tokens=9, adapter="sql"))
        assert fleet.home(group) is both
    homes = {fleet.home(fleet.accept(fake.request([1], max_tokens=9))[0]) for _ in range(9)}
    assert plain in homes
    assert other in homes


def test_a_request_with_images_goes_to_a_worker_that_takes_them(fake: SimpleNamespace, fleet: Fleet) -> None:
    images = images_at([(0, 2, 0)], 4)
    blind, _ = fleet.add_worker(fake.limits())
    group, _ = fleet.accept(fake.request([1] * 4, max_tokens=9, images=images))
    assert fleet.home(group) is None
    assert fleet.stranded() == [group]
    sees, _ = fleet.add_worker(fake.limits(images=True))
    assert fleet.home(group) is sees
    assert fleet.stranded() == []
    for _ in range(9):  # however much it has to do
        group, _ = fleet.accept(fake.request([1] * 4, max_tokens=9, images=images))
        assert fleet.home(group) is sees
    assert blind in {fleet.home(fleet.accept(fake.request([1], max_tokens=9))[0]) for _ in range(9)}
    fleet.remove_worker(sees)
    assert fleet.stranded() == [each for each in fleet.stranded() if each.request.images]
    assert len(fleet.stranded()) == 10


def test_the_length_of_a_request_with_images_is_that_of_the_workers_that_take_them(
    fake: SimpleNamespace, fleet: Fleet
) -> None:
    fleet.add_worker(fake.limits(max_model_len=64))
    fleet.add_worker(fake.limits(max_model_len=32, images=True))
    prompt = [1] * 40
    _, outcome = fleet.accept(fake.request(prompt))
    assert not outcome.failed
    _, outcome = fleet.accept(fake.request(prompt, images=images_at([(0, 2, 0)], 40)))
    ((_, refusal),) = outcome.failed
    assert "maximum context length is 32 tokens" in str(refusal)


def test_an_answer_with_an_adapter_goes_on_with_the_same_factors_alone(
    fake: SimpleNamespace, fleet: Fleet
) -> None:
    first, _ = fleet.add_worker(fake.limits(fingerprint="w", adapters={"sql": "w-1"}))
    worker = fake.StrictWorker(first.limits)
    groups = [fleet.accept(fake.request([1], max_tokens=9, adapter=name))[0] for name in ("sql", "")]
    for _ in range(4):
        step(fleet, first, worker)
    fleet.remove_worker(first)
    assert [group.fingerprint for group in groups] == ["w-1", "w"]
    newer, _ = fleet.add_worker(fake.limits(fingerprint="w", adapters={"sql": "w-2"}))
    assert [fleet.home(group) for group in groups] == [None, newer], "the model itself is the same"
    same, _ = fleet.add_worker(fake.limits(fingerprint="w", adapters={"sql": "w-1"}))
    assert fleet.home(groups[0]) is same


def test_what_another_scheduler_began_goes_to_the_worker_that_goes_on_with_it(
    fake: SimpleNamespace, fleet: Fleet
) -> None:
    schedulers = {each: fleet.add_worker(fake.limits(fingerprint=each))[0] for each in ("a", "b")}
    for name, scheduler in [*schedulers.items(), *schedulers.items()]:
        group, _ = fleet.accept(fake.request([1], max_tokens=9, fingerprint=name))
        assert fleet.home(group) is scheduler
    anyone, _ = fleet.accept(fake.request([1], max_tokens=9))
    assert fleet.home(anyone) is not None
    nobody, _ = fleet.accept(fake.request([1], max_tokens=9, fingerprint="c"))
    assert fleet.stranded() == [nobody]
    fleet.cancel(nobody)
    assert fleet.stranded() == []


def test_blocks_of_another_size_have_other_names(fake: SimpleNamespace, fleet: Fleet) -> None:
    small, _ = fleet.add_worker(fake.limits(block_size=4))
    prompts = [[1] * 4 + [number] * 8 for number in (2, 3)]
    groups = [fleet.accept(fake.request(prompt, max_tokens=4))[0] for prompt in prompts]
    small.plan()
    fleet.remove_worker(small)
    large, _ = fleet.add_worker(fake.limits(block_size=8))
    worker = fake.StrictWorker(large.limits)
    while not large.idle:
        step(fleet, large, worker)
    for group in groups:
        assert list(group.sequences[0].tokens[12:]) == fake.reference(group.request, 0, 64)


def test_a_suspect_that_fits_nowhere_does_not_hold_up_the_others(fake: SimpleNamespace, fleet: Fleet) -> None:
    large, _ = fleet.add_worker(fake.limits(num_blocks=16))
    for length in (40, 5):
        fleet.accept(fake.request([1] * length, max_tokens=2, salt=str(length)))
    for _ in range(4):
        large.plan()
    fleet.remove_worker(large)
    small, _ = fleet.add_worker(fake.limits(num_blocks=4))
    assert small.unfinished == 1


@pytest.mark.parametrize("in_flight", [False, True])
def test_what_was_to_fill_a_worker_goes_on_in_a_smaller_one(
    fake: SimpleNamespace, fleet: Fleet, in_flight: bool
) -> None:
    limits = {"max_model_len": 200, "max_slots": 8}
    first, _ = fleet.add_worker(fake.limits(num_blocks=16, **limits))
    worker = fake.StrictWorker(first.limits)
    fills, asked, short, rolls, searched = (
        fleet.accept(fake.request([1] * 5, **fields))[0]
        for fields in (
            {},
            {"max_tokens": 59, "seed": 2},
            {"max_tokens": 9, "seed": 3},
            {"rolling": True, "seed": 4},
            {"beams": 2, "seed": 5},
        )
    )
    for _ in range(3):
        step(fleet, first, worker)
    if in_flight:
        first.plan()
    fleet.remove_worker(first)
    less, _ = fleet.add_worker(fake.limits(num_blocks=14, **limits))
    worker = fake.StrictWorker(less.limits)
    for _ in range(600):
        step(fleet, less, worker)
        less.check_integrity()
    assert (fills.limit, rolls.limit, searched.limit) == (56, 56, 24)
    assert list(fills.sequences[0].tokens[5:]) == fake.reference(fills.request, 0, 56)
    assert [each.unfinished for each in (fills, short, searched)] == [0, 0, 0]
    assert len(searched.sequences[0].tokens) <= 24
    assert rolls.sequences[0].output_tokens > 100
    assert (asked.limit, asked.unfinished) == (64, 1), "it waits for a larger one"


def test_what_has_more_tokens_than_a_worker_holds_waits_for_a_larger_one(
    fake: SimpleNamespace, fleet: Fleet
) -> None:
    large, _ = fleet.add_worker(fake.limits(num_blocks=16))
    group, _ = fleet.accept(fake.request([1] * 40))
    step(fleet, large, fake.StrictWorker(large.limits))
    fleet.remove_worker(large)
    fleet.add_worker(fake.limits(num_blocks=10))
    assert (group.limit, fleet.home(group)) == (64, None)
    assert fleet.stranded() == [group]
    again, _ = fleet.add_worker(fake.limits(num_blocks=16))
    assert fleet.home(group) is again


def test_workers_that_are_alike_are_asked_once_who_is_stranded(
    fake: SimpleNamespace, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(8):
        fleet.add_worker(fake.limits(fingerprint="new"))
    groups = [fleet.accept(fake.request([1], fingerprint="old"))[0] for _ in range(5)]
    asked = list[str]()

    def goes_on(limits: WorkerLimits, adapter: str, fingerprint: str, images: bool = False) -> bool:
        asked.append(fingerprint)
        return False

    monkeypatch.setattr(WorkerLimits, "goes_on", goes_on)
    assert fleet.stranded() == groups
    assert asked == ["old"] * 5


def test_a_suspect_that_is_cancelled_makes_way(fake: SimpleNamespace, fleet: Fleet) -> None:
    first, _ = fleet.add_worker(fake.limits())
    groups = [fleet.accept(fake.request([number]))[0] for number in range(2)]
    first.plan()
    fleet.remove_worker(first)
    second, _ = fleet.add_worker(fake.limits())
    assert second.unfinished == 1
    fleet.cancel(groups[0])
    assert second.unfinished == 1
    assert fleet._home == {groups[1]: second}


def test_a_loss_without_work_in_flight_is_nobodys_fault(fake: SimpleNamespace, fleet: Fleet) -> None:
    groups = [fleet.accept(fake.request([number]))[0] for number in range(3)]
    for _ in range(5):
        scheduler, _ = fleet.add_worker(fake.limits())
        assert fleet.remove_worker(scheduler).failed == []
    assert [group.suspicion for group in groups] == [None] * 3


@pytest.mark.parametrize("shorter", [{"num_blocks": 8}, {"max_model_len": 24}])
def test_a_limit_that_was_lowered_for_a_smaller_worker_rises_with_a_larger_one(
    fake: SimpleNamespace, fleet: Fleet, shorter: dict[str, int]
) -> None:
    first, _ = fleet.add_worker(fake.limits())
    fields = ({}, {"max_tokens": 100, "seed": 2}, {"max_tokens": 50, "seed": 3}, {"beams": 2, "seed": 4})
    groups = [fleet.accept(fake.request([1] * 5, **each))[0] for each in fields]
    step(fleet, first, fake.StrictWorker(first.limits))
    fleet.remove_worker(first)
    limits = [group.limit for group in groups]
    small, _ = fleet.add_worker(fake.limits(**shorter))
    worker = fake.StrictWorker(small.limits)
    assert [fleet.home(group) for group in groups] == [small, small, None, small], "one asked for more itself"
    assert [group.limit < limit for group, limit in zip(groups, limits, strict=True)] == [1, 1, 0, 1]
    step(fleet, small, worker)
    large, _ = fleet.add_worker(fake.limits())
    assert fleet.max_length == 64
    fleet.remove_worker(small)
    assert [group.limit for group in groups] == limits
    worker = fake.StrictWorker(large.limits)
    while large.unfinished:
        step(fleet, large, worker)
    for group in groups[:3]:
        assert list(group.sequences[0].tokens[5:]) == fake.reference(group.request, 0, group.limit)
    longest = max(len(each.tokens) for each in groups[3].sequences)
    assert longest <= limits[3]


def test_a_request_that_came_while_workers_were_small_may_fill_a_larger_one(
    fake: SimpleNamespace, fleet: Fleet
) -> None:
    small, _ = fleet.add_worker(fake.limits(num_blocks=4))
    waits, asked = (fleet.accept(fake.request([1] * 5, max_tokens=most))[0] for most in (0, 30))
    assert (waits.limit, asked.limit) == (16, 16)
    fleet.add_worker(fake.limits())
    assert (waits.limit, asked.limit) == (64, 35)
    fleet.remove_worker(small)
    assert (waits.limit, asked.limit) == (64, 35)
