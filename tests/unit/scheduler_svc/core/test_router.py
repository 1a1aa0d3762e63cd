"""The router finds what looking at every worker finds."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_svc.core.capabilities import partial_blocks
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.router import AT_ONCE, Router, _Prompt
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup

EVENTS = st.lists(
    st.tuples(st.sampled_from(["join", "lose", "submit", "submit", "end"]), st.integers(0, 99)),
    min_size=10,
    max_size=80,
)


def by_looking_at_all(schedulers: list[Scheduler], group: SequenceGroup) -> Scheduler | None:
    able = [each for each in schedulers if group.limit <= each.limits.max_length]
    return min(able, key=lambda each: each.unfinished / each.slots, default=None)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS)
def test_the_heap_finds_what_a_look_at_all_finds(fake: SimpleNamespace, events) -> None:
    router = Router()
    schedulers: list[Scheduler] = []
    held: dict[Scheduler, list[SequenceGroup]] = {}
    for number, (event, which) in enumerate(events):
        if event == "join":
            limits = fake.limits(num_blocks=4 + which % 3, block_size=8, max_slots=1 + which % 4)
            schedulers.append(Scheduler(limits, 64))
            held[schedulers[-1]] = []
            router.add(schedulers[-1])
        elif event == "lose" and schedulers:
            router.remove(schedulers.pop(which % len(schedulers)))
        elif event == "end" and schedulers and held[scheduler := schedulers[which % len(schedulers)]]:
            scheduler.cancel(held[scheduler].pop())
            router.review(scheduler)
        elif event == "submit":
            group = SequenceGroup(fake.request([1]), number)
            group.limit = 30 + which % 30
            chosen = router.choose(group)
            assert chosen is by_looking_at_all(schedulers, group)
            if chosen is not None:
                chosen.submit(group)
                held[chosen].append(group)
                router.review(chosen)
        assert len(router._workers._heap) <= 2 * len(held)  # it does not grow with the events


def served(fake: SimpleNamespace, fleet: Fleet, prompt: list[int], **fields: Any) -> Scheduler:
    """The worker that got the prompt, once it has computed it."""
    group, _ = fleet.accept(fake.request(prompt, max_tokens=1, **fields))
    home = fleet.home(group)
    assert home is not None
    worker = fake.StrictWorker(home.limits, steps=home.step)
    while (plan := home.plan()) is not None:
        fleet.settle(home, home.complete(worker.execute(plan)))
    return home


def test_a_request_goes_where_its_prefix_is_cached(fake: SimpleNamespace) -> None:
    fleet = Fleet(16)
    first, second = (fleet.add_worker(fake.limits())[0] for _ in range(2))
    busy, _ = fleet.accept(fake.request([1]))
    assert fleet.home(busy) is first
    prompt = [2] * 12
    assert served(fake, fleet, prompt) is second
    fleet.accept(fake.request([1]))
    fleet.cancel(busy)
    assert (first.unfinished, second.unfinished) == (0, 1)
    group, _ = fleet.accept(fake.request([*prompt, 5, 6]))
    assert fleet.home(group) is second
    other, _ = fleet.accept(fake.request([*prompt, 5, 6], salt="another"))
    assert fleet.home(other) is first


def test_a_chat_that_is_shorter_than_a_block_stays_where_it_is(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is recurrent. It stays when it is longer, too, and so does what begins like it."""
    monkeypatch.setattr(partial_blocks, "STEPS", 0)
    fleet, stops = Fleet(16), frozenset({30})
    first, second = (fleet.add_worker(fake.limits(recurrent=True, block_size=32))[0] for _ in range(2))
    busy, _ = fleet.accept(fake.request([1]))
    prompt = [*[2] * 11, 30, 5, 30, 9]
    assert served(fake, fleet, prompt, stop_token_ids=stops) is second
    fleet.accept(fake.request([1]))
    fleet.cancel(busy)
    assert (first.unfinished, second.unfinished) == (0, 1)
    for asked, home in (
        ([*prompt[:14], 6, 7], second),
        ([*prompt[:12], 8, 8, 8], second),
        ([*prompt[:14], *[6] * 25], second),
        ([3, *prompt], first),
    ):
        group, _ = fleet.accept(fake.request(asked, stop_token_ids=stops, max_tokens=2))
        assert fleet.home(group) is home
        fleet.cancel(group)


def test_a_worker_whose_load_is_too_high_is_not_asked_what_it_has(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all have the prompt, and many ask, to look at each block of each would take seconds."""
    asked, cached_tokens = list[Scheduler](), Scheduler.cached_tokens

    def counted(self: Scheduler, *args: Any) -> float:
        asked.append(self)
        return cached_tokens(self, *args)

    fleet, prompt = Fleet(16), [2] * 13
    workers = [fleet.add_worker(fake.limits())[0] for _ in range(5)]
    others = [fleet.accept(fake.request([number]))[0] for number in range(40)]
    for group in others:
        if fleet.home(group) is workers[2]:
            fleet.cancel(group)
    fleet.cancel(fleet.accept(fake.request(prompt))[0])
    fleet._router._had = {name: dict.fromkeys(workers) for name in fleet._router._had}
    monkeypatch.setattr(Scheduler, "cached_tokens", counted)
    group, _ = fleet.accept(fake.request(prompt))
    assert fleet.home(group) is workers[2]
    assert asked == [workers[2]]


def test_load_outweighs_a_cached_prefix_in_the_end(fake: SimpleNamespace) -> None:
    fleet = Fleet(16)
    first, second = (fleet.add_worker(fake.limits())[0] for _ in range(2))
    prompt = [2] * 13
    assert served(fake, fleet, prompt) is first
    homes = [fleet.home(fleet.accept(fake.request(prompt))[0]) for _ in range(8)]
    assert homes[:3] == [first] * 3
    assert second in homes


def test_a_lost_worker_is_not_remembered(fake: SimpleNamespace) -> None:
    fleet = Fleet(16)
    first, second, third = (fleet.add_worker(fake.limits())[0] for _ in range(3))
    prompt = [2] * 13
    assert served(fake, fleet, prompt) is first
    fleet.remove_worker(first)
    group, _ = fleet.accept(fake.request(prompt))
    assert fleet.home(group) in (second, third)
    assert all(first not in had for had in fleet._router._had.values())


def test_one_that_joins_under_load_takes_its_share(fake: SimpleNamespace) -> None:
    fleet = Fleet(16)
    first, _ = fleet.add_worker(fake.limits())
    prompt = [2] * 13
    assert served(fake, fleet, prompt) is first
    for _ in range(20):
        fleet.accept(fake.request(prompt))
    first.plan()
    second, _ = fleet.add_worker(fake.limits())
    assert first.unfinished + second.unfinished == 20
    assert abs(first.unfinished - second.unfinished) <= 4  # a batch: the prefix is worth less than one


def test_a_prefix_is_known_where_it_was_computed_when_there_was_one_worker(fake: SimpleNamespace) -> None:
    fleet = Fleet(16)
    first, _ = fleet.add_worker(fake.limits())
    prompt = [1] * 24
    assert served(fake, fleet, prompt) is first
    fleet.add_worker(fake.limits())
    first_again, _ = fleet.accept(fake.request([2] * 4, max_tokens=9))
    assert fleet.home(first_again) is first
    goes_on, _ = fleet.accept(fake.request([*prompt, 3]))
    assert fleet.home(goes_on) is first, "though the other one has nothing to do"


def test_of_a_long_prompt_no_more_blocks_are_named_than_workers_may_know(fake: SimpleNamespace) -> None:
    fleet = Fleet(64)
    limits = fake.limits(num_blocks=256, max_model_len=1000, max_slots=8)
    for _ in range(2):
        fleet.add_worker(limits)
    long, _ = fleet.accept(fake.request([2] * 800))
    assert len(long.sequences[0].chain) == 1
    known = [1] * 200
    home = served(fake, fleet, known)
    goes_on, _ = fleet.accept(fake.request([*known, *([3] * 600)]))
    assert fleet.home(goes_on) is home
    fleet.add_worker(limits)  # for which what waits is placed anew
    assert len(long.sequences[0].chain) == 1
    prompt = _Prompt(goes_on, limits)
    assert prompt.cost(home) == home.unfinished / 8 + 600 / limits.max_step_tokens
    assert 50 < len(goes_on.sequences[0].chain) <= 50 + AT_ONCE
