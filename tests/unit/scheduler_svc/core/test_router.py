"""The router finds what looking at every worker finds."""

from types import SimpleNamespace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_svc.core.router import Router
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


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        assert len(router._heap) <= 2 * len(held)  # it does not grow with the events
