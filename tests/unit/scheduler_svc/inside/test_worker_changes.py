"""Looks at a worker, put together, are what is there."""

from array import array
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proto.arrays import unpack
from proto.inside_pb2 import SequenceChange, WorkerChange
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.inside.worker_changes import MOST_NUMBERS, MOST_WAITING, WorkerChanges, _trace_id
from tests.support.programs import World, busy_program, play


class Seen:
    """What one who watches knows of a worker: all changes put together."""

    def __init__(self) -> None:
        self.states: dict[int, int] = {}
        self.sequences: dict[int, SequenceChange] = {}
        self.blocks: dict[int, list[int]] = {}
        self.tokens: dict[int, array[int]] = {}
        self.limits: Any = None
        self.evicted = 0
        self.host_used = 0

    def take(self, change: WorkerChange) -> None:
        if change.HasField("limits"):
            assert self.limits is None
            self.limits = change.limits
        self.states.update(zip(unpack(change.blocks), unpack(change.states), strict=True))
        self.evicted += len(unpack(change.evicted))
        self.host_used = change.host_used
        for number in change.gone:
            del self.sequences[number], self.blocks[number], self.tokens[number]
        for told in change.sequences:
            if told.number in self.sequences:
                assert not told.request_id
                known = self.sequences[told.number]
                for name in ("request_id", "index", "tenant", "user", "trace_id", "prompt_tokens", "limit"):
                    setattr(told, name, getattr(known, name))
            self.sequences[told.number] = told
            before = self.blocks.get(told.number, [])
            assert told.kept_blocks <= len(before)
            self.blocks[told.number] = before[: told.kept_blocks] + list(unpack(told.added_blocks))
            known_tokens = self.tokens.get(told.number, array("i"))
            assert told.kept_tokens <= len(known_tokens)
            self.tokens[told.number] = known_tokens[: told.kept_tokens] + unpack(told.added_tokens)


def shown(told: SequenceChange) -> tuple[Any, ...]:
    names = ("request_id", "index", "tenant", "user", "state", "computed", "tokens", "cached_tokens")
    names += ("prompt_tokens", "limit", "dropped_blocks")
    return tuple(getattr(told, name) for name in names)


def really(sequence: Sequence) -> tuple[Any, ...]:
    group, request, table = sequence.group, sequence.group.request, sequence.table
    numbers = sequence.computed, len(sequence.tokens), group.cached_tokens or 0, len(request.prompt)
    who = request.request_id, sequence.index, request.tenant, request.user, sequence.state.value
    return *who, *numbers, group.limit, table.dropped if table else 0


class Watched(World):
    """A world that is watched: each of its workers by two, which look at other times. A look of one has
    room for little, and it looks until it is told nothing more."""

    def __init__(self, *arguments: Any, looks: Random) -> None:
        super().__init__(*arguments)
        self.looks = looks
        self.watchers: dict[Scheduler, list[tuple[WorkerChanges, Seen]]] = {}
        self.checked = 0

    def check(self, scheduler: Scheduler, worker: Any) -> None:
        super().check(scheduler, worker)
        watchers = self.watchers.setdefault(scheduler, [])
        if len(watchers) < 2 and self.looks.random() < 0.3:
            watchers.append((WorkerChanges(len(watchers), scheduler), Seen()))
        for number, (recorder, seen) in enumerate(watchers):
            if self.looks.random() < 0.4:
                room = MOST_NUMBERS if number else 9
                while (change := recorder.look(room)) is not None:
                    seen.take(change)
                self.compare(scheduler, seen)

    def compare(self, scheduler: Scheduler, seen: Seen) -> None:
        pool = scheduler.state.batch.pool
        there = {
            block: 2 * pool.references(block) + pool.is_cached(block) for block in range(pool.num_blocks)
        }
        assert {block: seen.states.get(block, 0) for block in there} == there
        assert seen.host_used == (pool.host.used_slots if pool.host else 0)
        groups = scheduler.state.groups
        alive = [each for group in groups for each in group.sequences if each.state is not State.DONE]
        waiting = [each for each in alive if each.table is None]
        told = [each for each in alive if each.table is not None] + waiting[:MOST_WAITING]
        assert sorted(map(shown, seen.sequences.values())) == sorted(map(really, told))
        running = {
            (each.group.request.request_id, each.index): each for each in scheduler.state.batch.running
        }
        for number, told in seen.sequences.items():
            sequence = running.get((told.request_id, told.index))
            if sequence is None:
                assert seen.blocks[number] == []
            else:
                assert sequence.table is not None
                assert seen.blocks[number] == sequence.table.blocks
                assert seen.tokens[number] == sequence.tokens
        self.checked += bool(alive)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    depth=st.sampled_from([1, 2, 3]),
    speculation=st.sampled_from(["off", "ngram"]),
    window=st.sampled_from([0, 0, 3]),
)
def test_looks_put_together_are_what_is_there(
    fake: SimpleNamespace, seed: int, depth: int, speculation: str, window: int
) -> None:
    random = Random(seed)
    block_size = random.choice([1, 2, 4])
    limits = {
        "num_blocks": random.choice([64, 128]) // block_size,
        "block_size": block_size,
        "max_slots": random.choice([2, 4, 12]),
        "max_step_tokens": random.choice([3, 16, 64]),
        "host_blocks": random.choice([0, 40]),
        "window": window,
    }
    world = Watched(fake, limits, depth, "fcfs", speculation, looks=random)
    world.join(None)
    play(world, busy_program(random, fake.POISON))
    assert world.checked
    for watchers in world.watchers.values():
        for recorder, _ in watchers:
            recorder.close()
    assert not any(scheduler.state.batch.pool.watches for scheduler in world.workers)


def settle(worker: Any, scheduler: Scheduler) -> None:
    plan = scheduler.plan()
    assert plan is not None
    scheduler.complete(worker.execute(plan))


def test_nothing_is_told_where_nothing_changes(fake: SimpleNamespace) -> None:
    scheduler = Scheduler(fake.limits(), 16)
    recorder = WorkerChanges(3, scheduler)
    first = recorder.look()
    assert first is not None
    assert first.number == 3
    assert first.limits.blocks == scheduler.limits.num_blocks
    assert recorder.look() is None
    recorder.close()


def test_what_was_given_up_for_something_else_is_told(fake: SimpleNamespace) -> None:
    world = World(fake, {"num_blocks": 4, "block_size": 4, "max_slots": 1, "max_step_tokens": 16}, 1)
    world.join(None)
    (scheduler,) = world.workers
    recorder = WorkerChanges(1, scheduler)
    seen = Seen()
    for number in range(3):  # each has blocks of its own, which only the last one can have
        prompt = [number] * 12
        fields = dict.fromkeys(("seed", "beams", "priority", "scored_tokens"), 0)
        fields |= {"prompt": prompt, "max_tokens": 2, "n": 1, "stop_token_ids": frozenset(), "salt": ""}
        fields |= {"tenant": "", "user": "", "deadline": 0.0, "rolling": False, "scores_prompt": False}
        world.arrive({**fields, "pooling": 0, "grammar": b""})
        while world.step():
            pass
        change = recorder.look()
        assert change is not None
        seen.take(change)
        assert bool(seen.evicted) == (number > 0)
    recorder.close()


@pytest.mark.parametrize("more", [0, 5])
def test_of_many_that_wait_the_first_are_told(fake: SimpleNamespace, more: int) -> None:
    world = World(fake, {"num_blocks": 64, "block_size": 4, "max_slots": 1, "max_step_tokens": 16}, 1)
    world.join(None)
    (scheduler,) = world.workers
    for number in range(1 + MOST_WAITING + more):
        request = fake.request(name=f"r{number}", prompt=[1], max_tokens=9)
        world.fleet.accept(request)
    scheduler.plan()
    change = WorkerChanges(1, scheduler).look()
    assert change is not None
    assert [told.request_id for told in change.sequences] == [f"r{n}" for n in range(1 + MOST_WAITING)]


@pytest.mark.parametrize(("flags", "found"), [("01", True), ("03", True), ("00", False)])
def test_only_traces_that_are_sent_are_shown(flags: str, found: bool) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    assert _trace_id(f"00-{trace}-b7ad6b7169203331-{flags}") == (trace if found else "")
    assert _trace_id("") == ""


def test_a_look_tells_no_more_than_it_has_room_for(fake: SimpleNamespace) -> None:
    world = Watched(
        fake, {"num_blocks": 64, "block_size": 4, "max_slots": 4, "max_step_tokens": 64}, 1, looks=Random(1)
    )
    world.join(None)
    (scheduler,) = world.workers
    for number in range(4):
        world.fleet.accept(fake.request(name=f"r{number}", prompt=[number] * 40, max_tokens=9))
    recorder, seen, sizes = WorkerChanges(1, scheduler), Seen(), []
    scheduler.plan()
    scheduler.plan()
    while (change := recorder.look(room=30)) is not None:
        seen.take(change)
        told = [change.blocks, change.states, change.evicted]
        told += [array for each in change.sequences for array in (each.added_blocks, each.added_tokens)]
        sizes.append(sum(map(len, told)) // 4)
    assert 20 < max(sizes) <= 30 + 10  # and the table of a sequence
    world.compare(scheduler, seen)
    recorder.close()
