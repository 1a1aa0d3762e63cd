"""The block pool: the references to each block of one worker's KV memory, and what is cached in it.

    referenced      in at least one block table; may also be cached (shared prefixes)
    idle            in no table, its content is cached: a hit brings it back,
                    or it is evicted when memory is needed, least recently used first,
                    and its content goes to the host if there is host memory (`host.py`)
    empty           in no table, and nothing is cached in it: given out first

Every block is in exactly one of the three states. The pool knows numbers only; a content is named by a hash
that the caller computes (`prefix.py`).
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler_svc.core.errors import IntegrityError, OutOfBlocks
from scheduler_svc.core.host import HostPool

ON_HOST = -1
"""Stands for a block in a match: the content is not on the device, but can be brought back."""


class NamedBlock(NamedTuple):
    """A referenced block that is to be cached once plans in flight have been made."""

    block: int
    content: bytes


@dataclass(slots=True)
class BlockWatch:
    """What has happened to blocks since somebody looked last. Whoever watches empties it."""

    changed: set[int] = field(default_factory=set)
    """Blocks whose references or content may have changed."""
    evicted: set[int] = field(default_factory=set)
    """Blocks whose cached content was given up."""


class BlockPool:
    """Blocks 0 to num_blocks - 1. No operation takes longer in a larger pool."""

    def __init__(self, num_blocks: int, host: HostPool | None = None) -> None:
        """`host`: takes the contents of evicted blocks; None: they are lost."""
        self.num_blocks = num_blocks
        self.host = host
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        # A stack whose top is block 0 at first: low numbers are used first, which reads well in traces.
        self._empty = list(range(num_blocks - 1, -1, -1))
        # The order is the order of eviction. An OrderedDict lets a block leave from the middle in O(1).
        self._idle: OrderedDict[int, None] = OrderedDict()
        self.shared_blocks = 0
        """Blocks that are in more than one table."""
        self.watches: list[BlockWatch] = []
        """Of those who look at the pool now; see `scheduler_svc/inside/worker_changes.py`."""

    @property
    def free_blocks(self) -> int:
        """Blocks that `allocate` could give out now."""
        return len(self._empty) + len(self._idle)

    @property
    def empty_blocks(self) -> int:
        """Blocks that `allocate` could give out without evicting."""
        return len(self._empty)

    @property
    def cached_blocks(self) -> int:
        """Blocks whose content can be hit, referenced or not."""
        return len(self._block_of)

    def references(self, block: int) -> int:
        """Number of tables that the block is in."""
        return self._references[block]

    def knows(self, content: bytes) -> bool:
        """Whether the content can be hit, on the device or on the host."""
        return content in self._block_of or (self.host is not None and content in self.host)

    def is_cached(self, block: int) -> bool:
        """Whether the block's content can be hit."""
        return self._hash_of[block] is not None

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one reference each. Raises `OutOfBlocks` if fewer are free."""
        if count > self.free_blocks:
            raise OutOfBlocks(f"{count} blocks wanted, {self.free_blocks} free")
        empty = self._empty
        split = max(0, len(empty) - count)
        blocks = empty[split:]
        blocks.reverse()
        del empty[split:]
        while len(blocks) < count:
            blocks.append(self._evict())
        for block in blocks:
            self._references[block] = 1
        if self.watches:
            self._note(blocks)
        return blocks

    def share(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block: it is in one more table, or was idle and hit."""
        references = self._references
        if self.watches:
            self._note(blocks)
        for block in blocks:
            if not references[block]:
                del self._idle[block]
            elif references[block] == 1:
                self.shared_blocks += 1
            references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Take one reference from each block of a table, given from head to tail.

        The tail is evicted before the head: a tail can never be hit without its head, but a head can be hit
        without its tail.
        """
        references = self._references
        if self.watches:
            self._note(blocks)
        for block in reversed(blocks):
            references[block] -= 1
            if references[block]:
                if references[block] == 1:
                    self.shared_blocks -= 1
                continue
            if self._hash_of[block] is None:
                self._empty.append(block)
            else:
                self._idle[block] = None

    def cache(self, block: int, content: bytes) -> None:
        """Enter a referenced block whose tokens are confirmed, and which nothing is written to any more, into
        the cache.

        If another block with the same content is cached, that one stays: tables are append-only, so equal
        blocks that were computed twice are not merged.
        """
        if self._hash_of[block] is None and content not in self._block_of:
            self._hash_of[block] = content
            self._block_of[content] = block
            if self.watches:
                self._note((block,))

    def match(self, contents: Iterable[bytes]) -> list[int]:
        """The blocks of the longest cached prefix of a chain of contents, some perhaps `ON_HOST`.

        Takes no reference.
        """
        hits, host = [], self.host
        for content in contents:
            block = self._block_of.get(content)
            if block is None:
                if host is None or content not in host:
                    break
                block = ON_HOST
            hits.append(block)
        return hits

    def take(self, hits: Sequence[int], contents: Sequence[bytes]) -> list[int]:
        """Add a reference to each block of a match, and bring what is on the host back into new blocks.

        `contents`: names of the hits. Returns the blocks. Raises `OutOfBlocks`. What is brought back is
        cached at once: the plan that is being made moves it before any row reads it.
        """
        missing = [content for content, block in zip(contents, hits, strict=True) if block == ON_HOST]
        if not missing:
            self.share(hits)
            return list(hits)
        assert self.host is not None
        for content in missing:  # before something is evicted to make room for them
            self.host.reserve(content)
        self.share([block for block in hits if block != ON_HOST])
        brought = self.allocate(len(missing))
        for content, block in zip(missing, brought, strict=True):
            self.host.bring(content, block)
            self.cache(block, content)
        fresh = iter(brought)
        return [next(fresh) if block == ON_HOST else block for block in hits]

    def idle_among(self, blocks: Iterable[int]) -> int:
        """Number of a match's blocks that `take` would take from the free ones: idle blocks, and one for
        each that is on the host."""
        references = self._references
        return sum(1 for block in blocks if block == ON_HOST or not references[block])

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise `IntegrityError` unless references, free blocks and cache agree with all `tables`."""
        held = [0] * self.num_blocks
        for table in tables:
            if len(set(table)) != len(table):
                raise IntegrityError(f"a table names a block twice: {table}")
            for block in table:
                held[block] += 1
        if held != self._references:
            wrong = [block for block, count in enumerate(held) if count != self._references[block]]
            raise IntegrityError(f"references that no table holds, or tables without reference: {wrong}")
        if self.shared_blocks != sum(1 for count in held if count > 1):
            raise IntegrityError(f"{self.shared_blocks} blocks count as shared, which is wrong")
        free = sorted([*self._empty, *self._idle])
        if free != [block for block, count in enumerate(held) if not count]:
            raise IntegrityError("the free blocks are not those without a reference")
        if any(self._hash_of[block] is not None for block in self._empty):
            raise IntegrityError("an empty block is cached")
        if any(self._hash_of[block] is None for block in self._idle):
            raise IntegrityError("an idle block is not cached")
        named = {content: block for block, content in enumerate(self._hash_of) if content is not None}
        if named != self._block_of:
            raise IntegrityError("the cache and the blocks disagree about contents")
        if self.host is not None:
            self.host.check_integrity()

    def _note(self, changed: Iterable[int]) -> None:
        for watch in self.watches:
            watch.changed.update(changed)

    def _evict(self) -> int:
        block, _ = self._idle.popitem(last=False)
        content = self._hash_of[block]
        assert content is not None
        del self._block_of[content]
        self._hash_of[block] = None
        for watch in self.watches:
            watch.evicted.add(block)
        if self.host is not None:
            self.host.keep(content, block)
        return block
