"""What has changed of one worker since somebody looked last.

It reads the scheduler's state and changes nothing of it. What a look costs grows with what has changed and
with the number of sequences, and not with the pool.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from proto.arrays import pack
from proto.inside_pb2 import Limits, SequenceChange, WorkerChange
from scheduler_svc.core.blocks import BlockPool, BlockWatch
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence, State

MOST_WAITING = 64
"""Sequences without a slot that are told of. There may be thousands."""
MOST_NUMBERS = 2**19
"""Of blocks and tokens, 4 bytes each, that a look tells, about: it is one message."""

Signature = tuple[State, int, int, int, int, int, "int | None"]


@dataclass(slots=True)
class _Told:
    """What was told of a sequence."""

    number: int
    signature: Signature | None = None
    """What it consists of: as long as that is the same, nothing has changed."""
    blocks: list[int] = field(default_factory=list)
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    """The array that the tokens were taken from. They are appended to it; other tokens are another array."""
    count: int = 0
    """Number of its tokens that were told."""


class WorkerChanges:
    """Looks at one worker for one who watches. `close` must be called in the end."""

    def __init__(self, number: int, scheduler: Scheduler) -> None:
        """`number`: of the worker, see inside.proto."""
        self._number = number
        self._scheduler = scheduler
        self._pool: BlockPool = scheduler.state.batch.pool
        blocks = range(self._pool.num_blocks)
        self._watch = BlockWatch(changed={block for block in blocks if self._state_of(block)})
        self._pool.watches.append(self._watch)
        self._told: dict[Sequence, _Told] = {}
        self._numbers = 0
        self.host_used = -1
        """As it was told; -1 before the first look."""

    def close(self) -> None:
        """Watch no more."""
        # Another watch may be equal to this one.
        self._pool.watches[:] = [watch for watch in self._pool.watches if watch is not self._watch]

    def look(self, room: int = MOST_NUMBERS) -> WorkerChange | None:
        """What has changed since the last look; at the first look everything. None if nothing has.

        `room`: numbers of blocks and tokens to tell, about. The looks after this one tell the rest.
        """
        change = WorkerChange(number=self._number)
        room -= self._look_at_blocks(change, room)
        shown = dict.fromkeys(self._shown())
        for sequence in self._told.keys() - shown.keys():
            change.gone.append(self._told.pop(sequence).number)
        for sequence in shown:
            if room <= 0:
                break
            room -= self._look_at(sequence, change, room)
        host = self._pool.host
        change.host_used = 0 if host is None else host.used_slots
        same = change.host_used == self.host_used
        if same and not (change.blocks or change.evicted or change.sequences or change.gone):
            return None
        if self.host_used < 0:
            change.limits.CopyFrom(self._limits())
        self.host_used = change.host_used
        return change

    def _state_of(self, block: int) -> int:
        """See `WorkerChange.states`."""
        return 2 * self._pool.references(block) + self._pool.is_cached(block)

    def _look_at_blocks(self, change: WorkerChange, room: int) -> int:
        """Tell of blocks. Returns how many numbers that took."""
        most = max(1, room // 4)  # half of it for what has changed: sequences need some, too
        changed, evicted = sorted(self._watch.changed)[:most], sorted(self._watch.evicted)[:most]
        self._watch.changed.difference_update(changed)
        self._watch.evicted.difference_update(evicted)
        change.blocks, change.states = pack(changed), pack([self._state_of(block) for block in changed])
        change.evicted = pack(evicted)
        return 2 * len(changed) + len(evicted)

    def _shown(self) -> Iterator[Sequence]:
        """The sequences that run, and the first of those that wait."""
        state = self._scheduler.state
        yield from state.batch.running
        waiting = (
            sequence
            for group in state.groups
            for sequence in group.sequences
            if sequence.table is None and sequence.state is not State.DONE
        )
        yield from islice(waiting, MOST_WAITING)

    def _look_at(self, sequence: Sequence, change: WorkerChange, room: int) -> int:
        """Tell of a sequence. Returns how many numbers that took."""
        told = self._told.get(sequence)
        if told is None:
            self._numbers += 1
            told = self._told[sequence] = _Told(self._numbers)
        tokens, table, cached = sequence.tokens, sequence.table, sequence.group.cached_tokens
        dropped = 0 if table is None else table.dropped
        blocks = [] if table is None else table.blocks
        if told.tokens is not tokens:
            told.tokens, told.count = tokens, 0
        signature = sequence.state, sequence.computed, len(tokens), told.count, len(blocks), dropped, cached
        whole = table is None or told.count == len(tokens)
        if whole and signature == told.signature and blocks == told.blocks:
            return 0
        message = change.sequences.add(number=told.number)
        if told.signature is None:
            _introduce(sequence, message)
        message.state, message.computed, message.tokens = sequence.state.value, sequence.computed, len(tokens)
        message.cached_tokens = cached or 0
        message.dropped_blocks = dropped
        message.kept_blocks = kept = _common(told.blocks, blocks)
        message.added_blocks = pack(blocks[kept:])
        message.kept_tokens = told.count
        if table is not None:
            added = tokens[told.count : told.count + max(0, room - len(blocks) + kept)]
            message.added_tokens = pack(added)
            told.count += len(added)
        told.blocks = blocks[:]
        told.signature = (*signature[:3], told.count, *signature[4:])
        return len(blocks) - kept + told.count - message.kept_tokens

    def _limits(self) -> Limits:
        limits = self._scheduler.limits
        return Limits(
            blocks=limits.num_blocks,
            block_size=limits.block_size,
            host_blocks=limits.host_blocks if limits.swaps else 0,
            slots=self._scheduler.slots,
            step_tokens=limits.max_step_tokens,
        )


def _introduce(sequence: Sequence, message: SequenceChange) -> None:
    """What never changes of a sequence."""
    group, request = sequence.group, sequence.group.request
    message.request_id, message.index = request.request_id, sequence.index
    message.tenant, message.user = request.tenant, request.user
    message.trace_id = _trace_id(request.traceparent)
    message.prompt_tokens, message.limit = len(request.prompt), group.limit


def _trace_id(traceparent: str) -> str:
    """Of a trace that is sent; empty for others, which nobody finds."""
    _, trace_id, _, flags = traceparent.split("-") if traceparent else ("", "", "", "0")
    return trace_id if int(flags, 16) & 1 else ""


def _common(before: list[int], now: list[int]) -> int:
    """How many blocks two tables have in common, from the head on."""
    if now[: len(before)] == before:
        return len(before)
    pairs = enumerate(zip(before, now, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(before), len(now)))
