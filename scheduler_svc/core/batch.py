"""The sequences that run on one worker: their slots and the blocks they hold.

The worker executes plans in the order in which they are sent. So slots and blocks may be given out again at
once, while a plan that still uses them is in flight. What that plan writes is written before the new owner
writes, and the new owner reads no position that it has not written itself, or hit in the cache, which has
only confirmed blocks.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from scheduler_svc.core.blocks import BlockPool
from scheduler_svc.core.errors import IntegrityError
from scheduler_svc.core.grammars import Grammars
from scheduler_svc.core.host import HostPool
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.shares import Shares
from scheduler_svc.core.sights import Sights
from scheduler_svc.core.table import BlockTable
from scheduler_svc.core.unfinished import UnfinishedPrefixes

_age = attrgetter("age")


class PartialBlock(NamedTuple):
    """A cached block that a text fills in part."""

    name: bytes
    end: int
    """Tokens of the text up to the place where the block ends."""


class Batch:
    """Slots and block tables of the worker's batch, as they are after the newest plan."""

    def __init__(
        self, limits: WorkerLimits, slots: int, unfinished: UnfinishedPrefixes, shares: Shares
    ) -> None:
        """`slots`: rows of the batch. `unfinished` and `shares` learn which sequences come and leave."""
        self.limits = limits
        self.unfinished = unfinished
        self.shares = shares
        self.pool = BlockPool(limits.num_blocks, HostPool(limits.host_blocks) if limits.swaps else None)
        self.grammars = Grammars()
        """Grammars that the worker has for the running sequences."""
        self.sights = Sights()
        """Which of them wait for their images."""
        self.running: list[Sequence] = []
        """Sequences with a slot, oldest first."""
        self.free_slots = list(range(slots - 1, -1, -1))
        self.freed_slots: list[int] = []
        """Slots given up since the last plan; the next plan frees them."""
        self.cut_tables: dict[Sequence, int] = {}
        """Blocks that are left of tables cut since the last plan; the next plan cuts them."""
        self.admitted_tokens = 0
        """Tokens known of all sequences when they got their slots, so far."""

    def admit(
        self, sequence: Sequence, hits: list[int], partial: PartialBlock | None = None
    ) -> tuple[list[int], list[int], list[int]]:
        """Give the sequence a slot, and a table that begins with blocks of `hits` and a copy of `partial`.

        Returns its blocks, and the block that is to be copied and the block to copy it to, as `fork` does.
        Blocks outside the window are neither held nor brought back.
        """
        gone = self.limits.outside_window(len(hits) * self.limits.block_size)
        held, names = hits[gone:], sequence.chain[gone : len(hits)]
        if partial:
            held, names = held + self.pool.match([partial.name]), [*names, partial.name]
        blocks = self.pool.take(held, names)
        kept = len(hits) - gone
        table = BlockTable(self.pool, self.limits.block_size, [0] * gone + blocks[:kept], gone)
        self._seat(sequence, table, partial.end if partial else table.room)
        sources = blocks[kept:]
        targets = table.grow(len(sources))
        return table.blocks[:], sources, targets

    def can_fork(self, parent: Sequence, tokens: int) -> bool:
        """Whether the parent still holds all that a row after its first `tokens` positions reads."""
        return parent.table is not None and parent.table.dropped <= self.limits.outside_window(tokens + 1)

    def fork(self, child: Sequence, parent: Sequence, tokens: int) -> tuple[list[int], list[int]]:
        """Give the child a slot, and a table that begins with the first `tokens` positions of its parent.

        Returns the block that is to be copied, and the block to copy it to; both empty if the last block is
        full. The first stays referenced until the caller releases it. A block must be free.
        """
        assert parent.table is not None
        table, sources = parent.table.fork(tokens)
        targets = table.grow(len(sources))
        child.chain, child.messages = parent.chain[: table.named], ()
        self._seat(child, table, tokens)
        child.turn_begin, child.turn_end = parent.turn_begin, parent.turn_end
        return sources, targets

    def to_take(self, sequence: Sequence) -> int:
        """Blocks that a running sequence needs beyond those it holds, to compute its known tokens."""
        table, known = sequence.table, len(sequence.tokens)
        assert table is not None
        room = self.limits.blocks_at_once(known) - len(table.blocks) + table.dropped
        return max(0, min(self.limits.blocks_for(known) - len(table.blocks), room))

    def reserved_for(self, sequence: Sequence) -> int:
        """Blocks that admission leaves to a running sequence.

        The blocks that its prefill has yet to take, and one more, so that it can go on for a while before
        another is preempted for it.
        """
        return 1 + (self.to_take(sequence) if sequence.state is State.PREFILL else 0)

    def reserved(self) -> int:
        """Blocks that admission leaves to all running sequences; 0 if none runs.

        Every accepted request fits into an empty batch.
        """
        return sum(map(self.reserved_for, self.running)) + self.limits.watermark if self.running else 0

    def roll_back(self, sequence: Sequence) -> None:
        """Set a sequence, of which nothing is in flight, back to its confirmed tokens.

        Blocks that only its drafts needed are given back.
        """
        assert sequence.table is not None
        sequence.computed = sequence.planned = len(sequence.tokens) - 1
        sequence.drafted = 0
        if sequence.table.truncate(len(sequence.tokens)):
            self.cut_tables[sequence] = len(sequence.table.blocks)

    def leave(self, sequence: Sequence, to: State) -> None:
        """Take slot and blocks from the sequence. Results of what is in flight for it will be dropped."""
        sequence.move(to)
        if sequence.table is None:
            return
        self.unfinished.leave(sequence)
        self.cut_tables.pop(sequence, None)
        del self.running[bisect_left(self.running, sequence.age, key=_age)]
        self.shares.gave_slot(sequence)
        if grammar := sequence.group.request.grammar:
            self.grammars.release(grammar)
        if sequence.sight:
            self.sights.release(sequence)
        self.free_slots.append(sequence.slot)
        self.freed_slots.append(sequence.slot)
        sequence.table.release()
        sequence.table = None
        sequence.slot = -1
        sequence.epoch += 1
        sequence.computed = sequence.planned = sequence.drafted = 0

    def check_integrity(self, copied: Iterable[int]) -> None:
        """Raise `IntegrityError` if blocks, tables and slots contradict each other.

        `copied`: blocks that plans in flight copy, or that get names when these have been made.
        """
        running = self.running
        tables = [sequence.table for sequence in running if sequence.table is not None]
        if len(tables) != len(running):
            raise IntegrityError("a running sequence has no table")
        self.pool.check_integrity([*(table.held() for table in tables), *([block] for block in copied)])
        slots = [sequence.slot for sequence in running] + self.free_slots
        if sorted(slots) != list(range(len(slots))):
            raise IntegrityError(f"slots held and free: {slots}")
        if running != sorted(running, key=_age):
            raise IntegrityError("running sequences are not in order of age")
        grammars = [sequence.group.request.grammar for sequence in running]
        self.grammars.check_integrity([grammar for grammar in grammars if grammar])
        if {sequence for sequence in running if sequence.sight} != set(self.sights.waiting()):
            raise IntegrityError("others than running sequences wait for images")
        if not self.shares.check(running):
            raise IntegrityError("an account has another number of slots than its sequences")
        for sequence, table in zip(running, tables, strict=True):
            _check_sequence(sequence, table, self.limits)

    def _seat(self, sequence: Sequence, table: BlockTable, computed: int) -> None:
        """Give the sequence a slot, with a table of which `computed` positions have been computed."""
        if sequence.tokens is sequence.group.request.prompt:  # they are about to grow
            sequence.tokens = sequence.tokens[:]
        sequence.table = table
        sequence.computed = sequence.planned = computed
        sequence.move(State.PREFILL)
        sequence.slot = self.free_slots.pop()
        sequence.given_tokens = len(sequence.tokens)
        sequence.admitted_output = sequence.output_tokens
        sequence.admission_cost = len(sequence.tokens) - computed
        self.admitted_tokens += len(sequence.tokens)
        insort(self.running, sequence, key=_age)
        self.shares.took_slot(sequence)
        if grammar := sequence.group.request.grammar:
            self.grammars.take(grammar)


def _check_sequence(sequence: Sequence, table: BlockTable, limits: WorkerLimits) -> None:
    block_size = limits.block_size
    known, planned = len(sequence.tokens), sequence.planned
    fits = {State.PREFILL: planned < known, State.DECODE: known - 1 <= planned < sequence.group.limit}
    room = len(table.blocks) * block_size
    in_order = table.named * block_size <= sequence.computed <= planned <= table.room == room
    in_window = table.dropped <= min(table.named, limits.outside_window(sequence.computed + 1))
    if not (fits.get(sequence.state, False) and in_order and in_window):
        raise IntegrityError(
            f"{sequence.group.request.request_id}[{sequence.index}] {sequence.state.value}: {known} tokens, "
            f"{table.dropped} dropped and {table.named} named blocks, "
            f"{sequence.computed} computed, {planned} planned, room {table.room}"
        )
