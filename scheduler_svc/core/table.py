"""A sequence's block table: logical to physical, append-only while the sequence holds it.

Behind a sliding window the head is given back while the sequence runs:

    blocks    7 2 9 4 0 3       logical blocks 0 to 5
              └─┘               dropped = 2: given back; the numbers only keep the places of the others
"""

from scheduler_svc.core.blocks import BlockPool


class BlockTable:
    """Position p of the sequence lives in block `blocks[p // block_size]` at `p % block_size`."""

    __slots__ = ("_block_size", "_pool", "blocks", "dropped", "named", "room")

    def __init__(self, pool: BlockPool, block_size: int, prefix: list[int], dropped: int = 0) -> None:
        """A table that begins with a cached prefix, whose first `dropped` blocks are given back.

        It takes over one reference to each of the other blocks.
        """
        self._pool = pool
        self._block_size = block_size
        self.blocks = prefix
        self.room = len(prefix) * block_size
        """Positions that the blocks hold."""
        self.named = len(prefix)
        """Number of blocks, from the head on, whose content the cache knows."""
        self.dropped = dropped
        """Number of blocks, from the head on, that were given back."""

    def fork(self, tokens: int) -> "tuple[BlockTable, list[int]]":
        """A table that shares the blocks that the first `tokens` positions fill, and the partly filled block.

        The second value has that block, or is empty. It is to be copied, and has one more reference, which
        the caller releases once it has been copied.
        """
        full = tokens // self._block_size
        dropped = min(full, self.dropped)
        self._pool.share(self.blocks[dropped:full])
        table = BlockTable(self._pool, self._block_size, self.blocks[:full], dropped)
        table.named = min(full, self.named)
        rest = self.blocks[full : full + 1] if tokens % self._block_size else []
        self._pool.share(rest)
        return table, rest

    def grow(self, count: int) -> list[int]:
        """Append `count` blocks, and return them. Raises `OutOfBlocks`."""
        added = self._pool.allocate(count)
        self.blocks += added
        self.room += count * self._block_size
        return added

    def truncate(self, tokens: int) -> bool:
        """Give back the blocks behind the first `tokens` positions. Whether there were any."""
        needed = -(-tokens // self._block_size)
        rest = self.blocks[needed:]
        self._pool.release(rest)
        del self.blocks[needed:]
        self.room = len(self.blocks) * self._block_size
        return bool(rest)

    def cache(self, chain: list[bytes], count: int) -> None:
        """Enter the first `count` blocks into the cache, under the names of the chain. They are full and
        confirmed."""
        for number in range(self.named, count):
            self._pool.cache(self.blocks[number], chain[number])
        self.named = count

    def drop(self, count: int) -> None:
        """Give back the first `count` blocks, which the sequence never reads again."""
        if count > self.dropped:
            self._pool.release(self.blocks[self.dropped : count])
            self.dropped = count

    @property
    def named_tokens(self) -> int:
        """Tokens in blocks that stay cached when the table is released, until they are evicted."""
        return self.named * self._block_size

    def held(self) -> list[int]:
        """The blocks to which the table has a reference, from head to tail."""
        return self.blocks[self.dropped :] if self.dropped else self.blocks

    def own_blocks(self) -> int:
        """Number of blocks that no other table shares: releasing the table would free them."""
        references = self._pool.references
        return sum(1 for block in self.held() if references(block) == 1)

    def release(self) -> None:
        """Give every block back. The table must not be used afterwards."""
        self._pool.release(self.held())
