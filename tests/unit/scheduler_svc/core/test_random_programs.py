"""Random programs of arrivals, cancels, early ends, losses of workers, over pools of any size.

After every event the books must balance, every token that has been computed for a running sequence must be in
its worker's memory, at its block and offset, and every cached block, on the device and on the host, must hold
what its name says. In the end every request has exactly the tokens that it
gets alone, no block is leaked, and the worker has seen nothing that it could not trust.
"""

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_svc.core.errors import RequestPoisoned, RequestRefused, RowFailed
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.plan import Outcome, StepResult
from scheduler_svc.core.policies import POLICIES, round_robin
from scheduler_svc.core.request import Pooling, Request, SoFar
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup

LIMITS = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(4, 24),
        "block_size": st.sampled_from([1, 2, 4, 8]),
        "max_slots": st.integers(1, 6),
        "max_model_len": st.integers(8, 48),
        "max_step_tokens": st.integers(1, 24),
        "host_blocks": st.sampled_from([0, 1, 3, 8, 24, 60]),
        "window": st.sampled_from([0, 0, 0, 1, 2, 5, 12]),
    }
)
# Few different tokens, so that prompts share prefixes.
PROMPTS = st.one_of(
    st.lists(st.integers(0, 2), min_size=1, max_size=24),
    st.integers(1, 30).map(lambda length: [1] * length),
)
ARRIVALS = st.fixed_dictionaries(
    {
        "prompt": PROMPTS,
        "seed": st.integers(0, 3),
        "max_tokens": st.integers(0, 20),
        "n": st.sampled_from([1, 1, 1, 2, 3]),
        "beams": st.sampled_from([0, 0, 0, 2, 3]),
        "stop_token_ids": st.frozensets(st.integers(0, 38), max_size=3),
        "salt": st.sampled_from(["", "", "tenant"]),
        "tenant": st.sampled_from(["", "a", "b"]),
        "priority": st.integers(-1, 1),
        "deadline": st.sampled_from([1.0, 2.0, 3.0, inf]),
        "rolling": st.sampled_from([False, False, True]),
        "pooling": st.sampled_from([*[Pooling.NO_POOLING] * 4, Pooling.MEAN, Pooling.LAST]),
    }
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), ARRIVALS),
        st.tuples(st.just("arrive"), ARRIVALS),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("lose"), st.integers(0, 1)),
        st.tuples(st.just("join"), st.none()),
    ),
    min_size=10,
    max_size=60,
)


@pytest.fixture(scope="module", autouse=True)
def short_turns() -> Iterator[None]:
    """Answers are short here; so is a turn."""
    usual, round_robin.QUANTUM = round_robin.QUANTUM, 3
    yield
    round_robin.QUANTUM = usual


class World:
    """A fleet, its fake workers, and what every request has been given."""

    def __init__(
        self,
        fake: SimpleNamespace,
        limits: dict[str, int],
        depth: int,
        policy: str = "fcfs",
        speculation: str = "off",
        references: dict[tuple[str, int], list[int]] | None = None,
    ) -> None:
        """`references`: of a program that several worlds play, what is known of its requests."""
        self.fake, self.depth = fake, depth
        self.references = {} if references is None else references
        self.limits = fake.limits(**limits, can_draft=True)
        self.fleet = Fleet(1000, policy, speculation)
        self.workers: dict[Scheduler, tuple[object, deque[StepResult]]] = {}
        self.requests: dict[SequenceGroup, Request] = {}
        self.given: dict[SequenceGroup, list[list[int]]] = {}
        self.ended: dict[SequenceGroup, str] = {}
        self.cut: set[tuple[SequenceGroup, int]] = set()
        self.futile: dict[Scheduler, int] = {}
        self.contents: dict[bytes, list[int]] = {}
        """What the names of full blocks stand for."""

    def arrive(self, fields: dict[str, Any]) -> None:
        if fields["pooling"]:
            told = ("prompt", "seed", "salt", "tenant", "priority", "deadline", "pooling")
            fields = {name: value for name, value in fields.items() if name in told}
            fields |= {"beams": 0, "rolling": False}
        known = fields.get("known", []) if not fields["beams"] else []
        fields = {name: value for name, value in fields.items() if name != "known"}
        fields["rolling"] &= not fields["beams"]
        if fields["rolling"]:  # for several contexts, and not for ever
            fields["max_tokens"] = 6 * (fields["max_tokens"] or 20)
            known = [5 * count for count in known]
        request = self.fake.request(name=f"r{len(self.requests)}", **fields)
        given = [self.reference(request, index)[:count] for index, count in enumerate(known)]
        resumed = tuple(SoFar(index, array("i", tokens), False) for index, tokens in enumerate(given))
        request = replace(request, resumed=resumed)
        group, outcome = self.fleet.accept(request)
        self.requests[group] = request
        self.given[group] = [*given, *([] for _ in range(request.n - len(given)))]
        self.note(outcome)

    def reference(self, request: Request, index: int) -> list[int]:
        """What a sequence of the request gets alone."""
        key = request.request_id, index
        if key not in self.references:
            longest = self.limits.max_length_of(request.beam_width)
            self.references[key] = self.fake.reference(request, index, longest, self.limits.window)
        return self.references[key]

    def note(self, outcome: Outcome) -> None:
        for gain in outcome.gains:
            assert gain.group not in self.ended
            assert (gain.group, gain.sequence_index) not in self.cut
            assert not gain.group.request.pooling
            if gain.token >= 0:
                self.given[gain.group][gain.sequence_index].append(gain.token)
        for gain in outcome.gains:
            if not gain.group.unfinished:
                self.ended[gain.group] = "complete"
        for group, embedding in outcome.embedded:
            assert group not in self.ended
            assert embedding == self.fake.embedding(self.requests[group], self.limits.window)
            self.ended[group] = "embedded"
        for group, error in outcome.failed:
            assert group not in self.ended
            assert isinstance(error, RequestRefused | RequestPoisoned | RowFailed)
            assert not isinstance(error, RowFailed) or self.fake.POISON in self.requests[group].prompt
            self.ended[group] = type(error).__name__

    def join(self, _: None) -> None:
        if len(self.workers) < 2:
            scheduler, outcome = self.fleet.add_worker(self.limits)
            self.workers[scheduler] = (self.fake.StrictWorker(self.limits), deque())
            self.note(outcome)

    def lose(self, which: int) -> None:
        if which < len(self.workers):
            scheduler = list(self.workers)[which]
            del self.workers[scheduler]
            self.note(self.fleet.remove_worker(scheduler))

    def live(self, which: int) -> SequenceGroup | None:
        live = [group for group in self.requests if group not in self.ended]
        return live[which] if which < len(live) else None

    def cancel(self, which: int) -> None:
        if (group := self.live(which)) is not None:
            self.fleet.cancel(group)
            self.ended[group] = "cancelled"

    def end(self, which: int) -> None:
        if (group := self.live(which)) is not None:
            index = which % self.requests[group].n
            if self.requests[group].beams is not None:
                return  # they end together
            self.fleet.end_sequence(group, index)
            self.cut.add((group, index))
            if not group.unfinished:
                self.ended[group] = "complete"

    def step(self, times: int = 1) -> bool:
        """Each worker answers a plan, with up to `depth` under way; False if none had anything to do."""
        moved = False
        for _ in range(times):
            for scheduler, (worker, results) in list(self.workers.items()):
                while scheduler.in_flight < self.depth and (plan := scheduler.plan()) is not None:
                    results.append(worker.execute(plan))  # type: ignore[attr-defined]
                if results:
                    self.watch_progress(scheduler)
                    outcome = scheduler.complete(results.popleft())
                    self.fleet.settle(scheduler, outcome)
                    self.note(outcome)
                    moved = True
                    self.check(scheduler, worker)
        return moved

    def check(self, scheduler: Scheduler, worker: Any) -> None:
        """The books balance, and what they say is in memory is there."""
        scheduler.check_integrity()
        for block in scheduler._batch.pool._empty:  # what it held is gone for good
            worker.forget(block)
        for sequence in scheduler._batch.running:
            table = sequence.table
            assert table is not None
            worker.check_readable(sequence.tokens[: sequence.computed], table.blocks, table.dropped)

    def check_cache(self, scheduler: Scheduler, worker: Any) -> None:
        """Every cached block holds what its name says."""
        self.learn_names(worker)
        pool, host = scheduler._batch.pool, scheduler._batch.pool.host
        for name, block in pool._block_of.items():
            if name in self.contents:  # not if a beam came and went within a step
                assert worker.memory[block] == self.contents[name]
        for name, slot in host._slot_of.items() if host else ():
            if name in self.contents and name not in host._named:  # those move with the next plan
                assert worker.host[slot] == self.contents[name]

    def learn_names(self, worker: Any) -> None:
        """Note which values belong to the names that sequences have given to their blocks."""
        size = self.limits.block_size
        for group in self.requests:
            for sequence in group.sequences:
                if sequence.chain and sequence.chain[-1] not in self.contents:
                    values = worker.values(sequence.tokens[: len(sequence.chain) * size])
                    for number, name in enumerate(sequence.chain):
                        self.contents[name] = values[number * size : (number + 1) * size]

    def watch_progress(self, scheduler: Scheduler) -> None:
        """Some sequence advances for good in every few steps, whatever the size of the pool."""
        flight = scheduler._flights[0]
        rows = zip(flight.sequences, flight.epochs, strict=True)
        advanced = any(sequence.epoch == epoch for sequence, epoch in rows)
        self.futile[scheduler] = 0 if advanced else self.futile.get(scheduler, 0) + 1
        assert self.futile[scheduler] <= scheduler.slots + self.depth

    def finish(self) -> None:
        """Run until all is done, within a bounded number of steps, and compare."""
        self.join(None)
        tokens = sum(
            request.n * (len(request.prompt) + self.limits.max_length + 2 * request.max_tokens)
            for request in self.requests.values()
        )
        for _ in range(50 + 4 * tokens):
            if not self.step():
                break
        else:
            raise AssertionError("no end in sight")
        for group, request in self.requests.items():
            assert group in self.ended
            for index, tokens in enumerate(self.given[group]):
                if not tokens and self.ended[group] != "complete":
                    continue
                expected = self.reference(request, index)
                if self.ended[group] == "complete" and (group, index) not in self.cut:
                    assert tokens == expected
                else:
                    assert tokens == expected[: len(tokens)]
        for scheduler in self.workers:
            assert scheduler.idle
            assert scheduler._batch.pool.free_blocks == self.limits.num_blocks
            assert len(scheduler._batch.free_slots) == scheduler.slots

    def whole(self) -> dict[tuple[str, int], list[int]]:
        """What the sequences got that nobody cut short, by request and index."""
        return {
            (request.request_id, index): self.given[group][index]
            for group, request in self.requests.items()
            for index in range(request.n)
            if self.ended[group] == "complete" and (group, index) not in self.cut
        }


def play(world: World, events: list[tuple[str, object]]) -> None:
    for name, argument in events:
        getattr(world, name)(argument)
        for scheduler, (worker, _) in world.workers.items():
            world.check(scheduler, worker)
            world.check_cache(scheduler, worker)
    world.finish()


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    limits=LIMITS,
    depth=st.sampled_from([1, 2, 2, 3]),
    policy=st.sampled_from(list(POLICIES)),
    speculation=st.sampled_from(["off", "off", "ngram", "draft"]),
    events=EVENTS,
)
def test_every_request_gets_what_it_gets_alone(
    fake: SimpleNamespace,
    limits: dict[str, int],
    depth: int,
    policy: str,
    speculation: str,
    events: list[tuple[str, object]],
) -> None:
    world = World(fake, limits, depth, policy, speculation)
    world.join(None)
    play(world, events)


POISON = 39


def busy_program(random: Random) -> list[tuple[str, Any]]:
    """Many requests at once, which a pool of any size must make wait, preempt and share."""
    events: list[tuple[str, Any]] = []
    shared = [random.randrange(5) for _ in range(24)]
    for _ in range(random.randrange(20, 60)):
        prompt = shared[: random.randrange(24)] + [random.randrange(5) for _ in range(random.randrange(1, 8))]
        if random.random() < 0.03:
            prompt.append(POISON)
        fields: dict[str, Any] = {
            "prompt": prompt,
            "seed": random.randrange(100),
            "max_tokens": random.choice([0, 1, 5, 20]),
            "n": random.choice([1, 1, 1, 2, 4]),
            "beams": random.choice([0, 0, 0, 0, 0, 2, 4]),
            "stop_token_ids": frozenset(random.sample(range(38), random.choice([0, 0, 3]))),
            "tenant": random.choice("abc"),
            "priority": random.choice([-1, 0, 0, 1]),
            "deadline": random.choice([1.0, 2.0, inf]),
            "rolling": random.random() < 0.2,
            "pooling": random.choice([*[Pooling.NO_POOLING] * 4, Pooling.MEAN, Pooling.LAST]),
        }
        if random.random() < 0.3:
            fields["known"] = [random.randrange(24) for _ in range(random.randrange(fields["n"] + 1))]
        events.append(("arrive", fields))
        if random.random() < 0.4:
            events.append(("step", random.randrange(1, 8)))
        if random.random() < 0.15:
            events.append((random.choice(["cancel", "end"]), random.randrange(10)))
        if random.random() < 0.05:
            events.append((random.choice(["lose", "join"]), random.randrange(2)))
    return events


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(24))
def test_planning_ahead_gives_what_lock_step_gives(fake: SimpleNamespace, seed: int, policy: str) -> None:
    random = Random(seed)
    block_size = random.choice([1, 2, 4, 8])
    limits = {
        "num_blocks": random.choice([64, 128, 320]) // block_size,
        "block_size": block_size,
        "max_slots": random.choice([2, 4, 12]),
        "max_step_tokens": random.choice([3, 16, 64]),
        "host_blocks": random.choice([0, 4, 40]),
        "window": random.choice([0, 0, 3, 16]),
    }
    events = busy_program(random)
    ways = ((1, "off"), (2, "draft"), (3, "off"))
    references: dict[tuple[str, int], list[int]] = {}
    worlds = [World(fake, limits, depth, policy, speculation, references) for depth, speculation in ways]
    for world in worlds:
        world.join(None)
        play(world, events)
    lock_step, *ahead = (world.whole() for world in worlds)
    for whole in ahead:
        both = lock_step.keys() & whole.keys()
        assert both
        assert {key: lock_step[key] for key in both} == {key: whole[key] for key in both}
