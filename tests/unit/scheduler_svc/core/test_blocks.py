"""The block pool: eviction order, hits, and random programs against a plain model of it."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler_svc.core.blocks import ON_HOST, BlockPool
from scheduler_svc.core.errors import IntegrityError, OutOfBlocks


def name(number: int) -> bytes:
    return number.to_bytes(2, "big")


def cached_table(pool: BlockPool, count: int, first_name: int = 0) -> list[int]:
    """A table whose blocks are cached, and then given back."""
    blocks = pool.allocate(count)
    for number, block in enumerate(blocks):
        pool.cache(block, name(first_name + number))
    pool.release(blocks)
    return blocks


def test_empty_blocks_are_used_before_cached_ones() -> None:
    pool = BlockPool(4)
    cached_table(pool, 2)
    assert len(pool.match([name(0), name(1)])) == 2
    pool.allocate(2)
    assert len(pool.match([name(0), name(1)])) == 2
    pool.allocate(1)
    assert pool.match([name(0), name(1)]) == [0]


def test_evicts_the_least_recently_used_and_tails_before_heads() -> None:
    pool = BlockPool(4)
    old, new = cached_table(pool, 2), cached_table(pool, 2, first_name=10)
    assert pool.allocate(4) == [old[1], old[0], new[1], new[0]]


def test_a_hit_leaves_the_middle_of_the_order_and_comes_back_last() -> None:
    pool = BlockPool(3)
    a, b, c = (cached_table(pool, 1, first_name)[0] for first_name in (0, 1, 2))
    pool.share([b])
    assert pool.free_blocks == 2
    pool.release([b])
    assert pool.allocate(3) == [a, c, b]


def test_a_shared_block_is_free_when_the_last_holder_lets_go() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.share(blocks)
    pool.release(blocks)
    assert (pool.free_blocks, pool.references(blocks[0])) == (0, 1)
    pool.release(blocks)
    assert pool.free_blocks == 1


def test_too_few_blocks_take_nothing() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(OutOfBlocks):
        pool.allocate(3)
    assert pool.free_blocks == 2


def test_equal_contents_are_not_merged() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.cache(first, name(1))
    pool.cache(second, name(1))
    assert pool.match([name(1)]) == [first]
    pool.release([first, second])
    assert pool.cached_blocks == 1
    pool.check_integrity([])


def test_a_match_ends_at_the_first_gap() -> None:
    pool = BlockPool(4)
    blocks = cached_table(pool, 3)
    assert pool.match([name(0), name(9), name(2)]) == blocks[:1]


def test_integrity_notices_a_leak_and_a_table_without_reference() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.check_integrity([blocks])
    for tables, problem in (
        ([], r"references that no table holds, or tables without reference: \[0\]"),
        ([blocks, blocks], r"references .*: \[0\]"),
        ([[0, 1]], r"references .*: \[1\]"),
        ([[*blocks, *blocks]], "names a block twice"),
    ):
        with pytest.raises(IntegrityError, match=problem):
            pool.check_integrity(tables)


def test_of_a_match_only_what_nobody_holds_comes_from_the_free_blocks() -> None:
    pool = BlockPool(4)
    first, second = cached_table(pool, 2)
    pool.share([first])
    free = pool.free_blocks
    assert pool.idle_among([first, second, ON_HOST]) == 2
    pool.take([first, second], [name(0), name(1)])
    assert pool.free_blocks == free - 1


class PoolMachine(RuleBasedStateMachine):
    """Tables come, share and go; what is cached must be what was last written under that name."""

    SIZE = 8

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.SIZE)
        self.tables: list[list[int]] = []
        self.content: dict[int, bytes | None] = {}

    def take(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            assert not any(block in table for table in self.tables), "given out twice"
            self.content[block] = None

    @rule(count=st.integers(1, SIZE + 1))
    def allocate(self, count: int) -> None:
        free = self.SIZE - len({block for table in self.tables for block in table})
        assert self.pool.free_blocks == free
        if count > free:
            with pytest.raises(OutOfBlocks):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count)
        self.take(blocks)
        self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0), chain=st.integers(0, 2))
    def cache(self, which: int, chain: int) -> None:
        for number, block in enumerate(self.tables[which % len(self.tables)]):
            self.pool.cache(block, name(chain * self.SIZE + number))
            if self.content[block] is None and self.pool.match([name(chain * self.SIZE + number)]) == [block]:
                self.content[block] = name(chain * self.SIZE + number)

    @rule(chain=st.integers(0, 2))
    def hit(self, chain: int) -> None:
        names = [name(chain * self.SIZE + number) for number in range(self.SIZE)]
        blocks = self.pool.match(names)
        assert [self.content[block] for block in blocks] == names[: len(blocks)]
        if blocks:
            self.pool.share(blocks)
            self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(which=st.integers(0))
    def release(self, which: int) -> None:
        self.pool.release(self.tables.pop(which % len(self.tables)))

    @invariant()
    def balanced(self) -> None:
        self.pool.check_integrity(self.tables)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40)
