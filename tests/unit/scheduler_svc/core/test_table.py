"""Block tables: what a fork shares, what is given back, and what a table has for itself."""

from scheduler_svc.core.blocks import BlockPool
from scheduler_svc.core.table import BlockTable

SIZE = 4


def grown(pool: BlockPool, count: int) -> BlockTable:
    table = BlockTable(pool, SIZE, [])
    table.grow(count)
    return table


def test_a_fork_shares_full_blocks_and_names_the_one_to_copy() -> None:
    pool = BlockPool(8)
    parent = grown(pool, 3)
    parent.cache([b"first"], 1)
    child, rest = parent.fork(2 * SIZE + 1)
    assert (child.blocks, rest) == (parent.blocks[:2], parent.blocks[2:])
    assert (child.room, child.named, child.dropped) == (2 * SIZE, 1, 0)
    assert [pool.references(block) for block in parent.blocks] == [2, 2, 2]
    assert parent.fork(SIZE)[1] == [], "the last block is full"


def test_own_blocks_are_those_that_a_release_frees() -> None:
    pool = BlockPool(8)
    parent = grown(pool, 3)
    child, _ = parent.fork(2 * SIZE)
    child.grow(2)
    for table, own in ((parent, 1), (child, 4)):  # the parent's go first
        assert table.own_blocks() == own
        free = pool.free_blocks
        table.release()
        assert pool.free_blocks == free + own
    pool.check_integrity([])


def test_a_dropped_head_is_given_back_once() -> None:
    pool = BlockPool(8)
    parent = grown(pool, 4)
    for count in (2, 2, 1, 3):
        parent.drop(count)
        pool.check_integrity([parent.held()])
    assert (parent.dropped, parent.held()) == (3, parent.blocks[3:])
    child, rest = parent.fork(3 * SIZE + 1)
    assert (child.dropped, child.held(), rest) == (3, [], parent.blocks[3:])
    pool.release(rest)
    child.release()
    parent.release()
    pool.check_integrity([])


def test_blocks_behind_the_tokens_are_cut() -> None:
    pool = BlockPool(8)
    table = grown(pool, 3)
    assert table.truncate(SIZE + 1)
    assert (len(table.blocks), table.room, pool.free_blocks) == (2, 2 * SIZE, 6)
    assert not table.truncate(2 * SIZE)
