"""Host memory: what goes there, what comes back, and what is chosen to be lost."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler_svc.core.blocks import ON_HOST, BlockPool
from scheduler_svc.core.errors import IntegrityError
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.host import HostPool, Swaps
from scheduler_svc.core.phases.preempt import lost_tokens


def name(number: int) -> bytes:
    return bytes([number])


def names(*numbers: int) -> list[bytes]:
    return [name(number) for number in numbers]


def filled(pool: BlockPool, *numbers: int) -> list[int]:
    """A table with these contents, given back."""
    blocks = pool.allocate(len(numbers))
    for block, number in zip(blocks, numbers, strict=True):
        pool.cache(block, name(number))
    pool.release(blocks)
    return blocks


def swaps(pool: BlockPool) -> Swaps:
    assert pool.host is not None
    pool.host.check_integrity()
    return pool.host.take_swaps()


def test_what_is_evicted_goes_to_the_host_and_comes_back() -> None:
    pool = BlockPool(3, HostPool(4))
    one, two = filled(pool, 1, 2)
    others = pool.allocate(3)
    assert swaps(pool) == Swaps([(two, 0), (one, 1)], [])
    assert pool.match(names(1, 2, 3)) == [ON_HOST, ON_HOST]
    pool.release(others[:2])
    table = pool.take([ON_HOST, ON_HOST], names(1, 2))
    assert swaps(pool) == Swaps([], [*zip([1, 0], table, strict=True)])
    assert pool.match(names(1, 2)) == table


def test_what_was_brought_back_is_evicted_without_moving_again() -> None:
    pool = BlockPool(2, HostPool(4))
    filled(pool, 1, 2)
    pool.release(pool.allocate(2))
    pool.release(pool.take([ON_HOST, ON_HOST], names(1, 2)))
    swaps(pool)
    pool.allocate(2)
    assert swaps(pool) == Swaps([], [])
    assert pool.match(names(1, 2)) == [ON_HOST, ON_HOST]


def test_the_host_drops_what_was_moved_least_recently() -> None:
    pool = BlockPool(1, HostPool(2))
    for number in (1, 2):
        filled(pool, number)
    pool.release(pool.allocate(1))
    swaps(pool)
    pool.release(pool.take([ON_HOST], names(1)))  # now 2 is older
    filled(pool, 3)
    pool.allocate(1)
    assert [len(pool.match(names(number))) for number in (1, 2, 3)] == [1, 0, 1]


def test_a_slot_that_the_plan_reads_is_not_written() -> None:
    """Taking 1 back evicts 2 and 3, for which there is no slot but that of 1."""
    pool = BlockPool(2, HostPool(1))
    filled(pool, 1)
    held = pool.allocate(2)
    swaps(pool)
    for number, block in zip((2, 3), held, strict=True):
        pool.cache(block, name(number))
    pool.release(held)
    table = pool.take([ON_HOST], names(1))
    pool.allocate(1)
    assert swaps(pool) == Swaps([], [(0, *table)])
    assert pool.match(names(2)) == pool.match(names(3)) == []


def test_a_content_goes_and_comes_within_one_plan() -> None:
    pool = BlockPool(2, HostPool(2))
    one, _ = filled(pool, 1, 2)
    spare = pool.allocate(2)
    pool.release(spare)
    (back,) = pool.take([ON_HOST], names(1))
    moved = swaps(pool)
    (first, _), (second, slot) = moved.out
    assert (first, second, moved.back) == (1, one, [(slot, back)])


def test_blocks_of_both_kinds_make_one_prefix() -> None:
    pool = BlockPool(4, HostPool(4))
    head, _, _ = filled(pool, 1, 2, 3)
    held = pool.allocate(3)  # the empty one, and the two at the tail
    swaps(pool)
    assert pool.match(names(1, 2, 3)) == [head, ON_HOST, ON_HOST]
    assert pool.idle_among([head, ON_HOST, ON_HOST]) == 3
    pool.release(held)
    table = pool.take([head, ON_HOST, ON_HOST], names(1, 2, 3))
    assert table[0] == head
    assert pool.match(names(1, 2, 3)) == table


def test_integrity_notices_a_lost_slot() -> None:
    host = HostPool(2)
    host.keep(name(1), 5)
    host.check_integrity()
    host._slot_of.clear()
    with pytest.raises(IntegrityError, match="slot"):
        host.check_integrity()


class Served:
    """One worker, whose steps are taken one by one."""

    def __init__(self, fake: SimpleNamespace, **limits: float) -> None:
        self.fake = fake
        self.limits = fake.limits(**limits)
        self.fleet = Fleet(1000)
        self.scheduler, _ = self.fleet.add_worker(self.limits)
        self.worker = fake.StrictWorker(self.limits)
        self.groups: list[Any] = []

    def ask(self, prompt: list[int], **fields: Any) -> Any:
        request = self.fake.request(prompt, name=f"r{len(self.groups)}", **fields)
        group, outcome = self.fleet.accept(request)
        assert not outcome.failed
        self.groups.append(group)
        return group

    def run(self) -> None:
        while (plan := self.scheduler.plan()) is not None:
            self.fleet.settle(self.scheduler, self.scheduler.complete(self.worker.execute(plan)))
            self.scheduler.check_integrity()
        for group in self.groups:
            request = group.request
            answer = list(group.sequences[0].tokens[len(request.prompt) :])
            assert answer == self.fake.reference(request, 0, self.limits.max_length)


SYSTEM = list(range(20))


def asked_twice(fake: SimpleNamespace, **limits: float) -> tuple[int, Served]:
    """Cached tokens of a prompt that is asked again after its blocks were needed by others."""
    served = Served(fake, num_blocks=8, **limits)
    served.ask([*SYSTEM, 1], max_tokens=2)
    served.run()
    for number in range(3):
        served.ask([30 + number] * 28, max_tokens=2)
        served.run()
    again = served.ask([*SYSTEM, 2], max_tokens=2)
    served.run()
    assert again.cached_tokens is not None
    return again.cached_tokens, served


def test_an_evicted_prefix_is_a_hit_with_host_memory_alone(fake: SimpleNamespace) -> None:
    assert asked_twice(fake)[0] == 0
    cached, served = asked_twice(fake, host_blocks=40)
    assert cached == 20
    assert served.worker.swapped_in == 5


@pytest.mark.parametrize(
    "costs", [{"swap_block_us": 2.0}, {"swap_block_us": 100.0}, {"token_us": 0.0}, {"token_us": 0.1}]
)
def test_what_costs_more_to_move_than_to_compute_is_not_moved(
    fake: SimpleNamespace, costs: dict[str, float]
) -> None:
    """A block is 4 tokens, of 1 us unless said otherwise; it moves out and in."""
    cached, served = asked_twice(fake, host_blocks=40, **costs)
    assert cached == served.worker.swapped_out == 0


def test_what_is_brought_back_takes_a_share_of_the_step(fake: SimpleNamespace) -> None:
    """Two prefixes of five blocks, each worth 9 tokens: with ten a step they come one after the other."""
    served = Served(fake, num_blocks=16, host_blocks=40, swap_block_us=1.9, max_step_tokens=10)
    for prompt in ([1] * 21, [2] * 21, [3] * 61):
        served.ask(prompt, max_tokens=1)
        served.run()
    for last in (1, 2):
        served.ask([last] * 20 + [5], max_tokens=1)
    plans = [served.scheduler.plan() for _ in range(2)]
    assert [len(plan.swap_in.host_slots) for plan in plans if plan] == [5, 5]
    assert [plan.rows.counts for plan in plans if plan] == [(1,), (1,)]
    for plan in plans:
        assert plan is not None
        served.scheduler.complete(served.worker.execute(plan))
    served.run()


def preempted(fake: SimpleNamespace, **limits: float) -> Served:
    """Three long answers where there is room for two."""
    served = Served(fake, num_blocks=14, **limits)
    for number in range(3):
        served.ask([number] * 9, max_tokens=16)
    served.run()
    return served


def test_a_preempted_sequence_comes_back_without_being_computed_again(fake: SimpleNamespace) -> None:
    without, swapping = preempted(fake), preempted(fake, host_blocks=20)
    needed = 3 * (9 + 16 - 1)
    assert without.worker.computed_tokens > needed + 4
    assert swapping.worker.computed_tokens < without.worker.computed_tokens
    assert swapping.worker.swapped_in > 0


def losses(fake: SimpleNamespace, **limits: float) -> list[float]:
    """Of a sequence of three full blocks, and of one of seven tokens in none."""
    served = Served(fake, num_blocks=12, block_size=8, max_step_tokens=40, **limits)
    groups = [served.ask([length] * length, max_tokens=20) for length in (24, 7)]
    plan = served.scheduler.plan()
    assert plan is not None
    served.scheduler.complete(served.worker.execute(plan))
    return [lost_tokens(served.scheduler.state, group.sequences[0]) for group in groups]


def test_the_loss_is_what_it_takes_to_make_it_good(fake: SimpleNamespace) -> None:
    assert losses(fake) == [24, 7]
    assert losses(fake, host_blocks=40, swap_block_us=0.5) == [3, 7]
    assert losses(fake, host_blocks=2, swap_block_us=0.5) == [8 + 2, 7]


def test_what_the_host_has_already_loses_less(fake: SimpleNamespace) -> None:
    _, served = asked_twice(fake, host_blocks=40, swap_block_us=0.5)
    served.ask([*SYSTEM, 3], max_tokens=2)
    while not served.scheduler.state.batch.running:
        assert served.scheduler.plan() is not None
    (sequence,) = served.scheduler.state.batch.running
    assert lost_tokens(served.scheduler.state, sequence) == 5 * 0.5 + 1


def test_what_lies_on_the_host_counts_for_what_it_saves(fake: SimpleNamespace) -> None:
    """Half a block's time to bring one back: a worker that has it on the device is preferred."""
    _, served = asked_twice(fake, host_blocks=40, swap_block_us=1.9)
    chain = list(served.groups[0].sequences[0].chain[:5])
    on_device = served.scheduler.cached_tokens(chain, lambda _: ())
    assert on_device == 20
    served.ask([35] * 28, max_tokens=2)
    served.run()
    hits = served.scheduler.state.batch.pool.match(chain)
    assert hits.count(ON_HOST) > 0
    assert served.scheduler.cached_tokens(chain, lambda _: ()) == pytest.approx(
        20 - 1.9 * hits.count(ON_HOST)
    )


class HostMachine(RuleBasedStateMachine):
    """Tables come, share and go, over memory that holds what was last written or moved there."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6, HostPool(4))
        self.device: dict[int, bytes] = {}
        self.host: dict[int, bytes] = {}
        self.tables: list[tuple[list[int], list[bytes]]] = []
        self.planned = 0
        """Tables that the worker knows of; later ones came into the plan in the making."""

    @rule(chain=st.integers(0, 3), count=st.integers(1, 5))
    def admit(self, chain: int, count: int) -> None:
        contents = names(*range(10 * chain, 10 * chain + count))
        hits = self.pool.match(contents)
        missing = count - len(hits)
        if missing + self.pool.idle_among(hits) <= self.pool.free_blocks:
            blocks = self.pool.take(hits, contents[: len(hits)]) + self.pool.allocate(missing)
            self.tables.append((blocks, contents))

    @rule()
    def step(self) -> None:
        """The worker moves blocks and computes those that were not hit; then they are confirmed."""
        moved = swaps(self.pool)
        assert len({slot for _, slot in moved.out}) == len(moved.out)
        self.host.update([(slot, self.device[block]) for block, slot in moved.out])
        self.device.update([(block, self.host[slot]) for slot, block in moved.back])
        for blocks, contents in self.tables[self.planned :]:
            for block, content in zip(blocks, contents, strict=True):
                if self.pool.match([content]) != [block]:
                    self.device[block] = content
        self.planned = len(self.tables)
        for blocks, contents in self.tables:
            assert [self.device[block] for block in blocks] == contents
            for block, content in zip(blocks, contents, strict=True):
                self.pool.cache(block, content)

    @precondition(lambda self: self.tables and self.planned == len(self.tables))
    @rule(which=st.integers(0))
    def release(self, which: int) -> None:
        self.pool.release(self.tables.pop(which % len(self.tables))[0])
        self.planned -= 1

    @invariant()
    def balanced(self) -> None:
        self.pool.check_integrity([blocks for blocks, _ in self.tables])


TestHost = HostMachine.TestCase
TestHost.settings = settings(max_examples=60, stateful_step_count=40)
