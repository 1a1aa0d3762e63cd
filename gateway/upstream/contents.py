"""Which tokens are in which block, as far as that was seen.

The block's sequence runs, or it has ended and the block is still cached.
"""

from array import array
from dataclasses import dataclass, field

from proto.arrays import unpack
from proto.inside_pb2 import Look, SequenceChange, WorkerChange


@dataclass(frozen=True)
class BlockContent:
    """What a block holds, and for whom it was computed."""

    request_id: str
    index: int
    tenant: str
    start: int
    """Position of the block's first token in the sequence's context."""
    tokens: "array[int]"
    """Those of the block's positions that are computed."""


@dataclass
class _Sequence:
    request_id: str
    index: int
    tenant: str
    blocks: list[int] = field(default_factory=list)
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    computed: int = 0
    dropped: int = 0

    def content(self, place: int, block_size: int) -> BlockContent:
        start = place * block_size
        tokens = self.tokens[start : min(start + block_size, self.computed)]
        return BlockContent(self.request_id, self.index, self.tenant, start, tokens)


class WorkerContents:
    """The blocks of one worker."""

    def __init__(self) -> None:
        self._block_size = 1
        self._sequences: dict[int, _Sequence] = {}
        self._left: dict[int, BlockContent] = {}
        """Full blocks that a sequence has given back."""

    def note(self, change: WorkerChange) -> None:
        """Take in a change."""
        if change.HasField("limits"):
            self._block_size = change.limits.block_size
        for number in change.gone:
            if (sequence := self._sequences.pop(number, None)) is not None:
                self._leave(sequence, 0)
        for told in change.sequences:
            self._note(told)
        for block, state in zip(unpack(change.blocks), unpack(change.states), strict=True):
            if not state:
                self._left.pop(block, None)
        for block in unpack(change.evicted):
            self._left.pop(block, None)

    def of(self, block: int) -> BlockContent | None:
        """What a block holds; None if that is not known."""
        for sequence in self._sequences.values():
            if block in sequence.blocks[sequence.dropped :]:
                return sequence.content(sequence.blocks.index(block, sequence.dropped), self._block_size)
        return self._left.get(block)

    def _note(self, told: SequenceChange) -> None:
        sequence = self._sequences.get(told.number)
        if sequence is None:
            sequence = self._sequences[told.number] = _Sequence(told.request_id, told.index, told.tenant)
        self._leave(sequence, told.kept_blocks)
        sequence.blocks = sequence.blocks[: told.kept_blocks] + list(unpack(told.added_blocks))
        del sequence.tokens[told.kept_tokens :]
        sequence.tokens.extend(unpack(told.added_tokens))
        sequence.computed, sequence.dropped = told.computed, told.dropped_blocks

    def _leave(self, sequence: _Sequence, kept: int) -> None:
        """A sequence gives back its blocks behind the first `kept`."""
        for place in range(max(kept, sequence.dropped), sequence.computed // self._block_size):
            if place < len(sequence.blocks):
                self._left[sequence.blocks[place]] = sequence.content(place, self._block_size)


class Contents:
    """The blocks of all workers that are watched."""

    def __init__(self) -> None:
        self._workers: dict[tuple[str, int], WorkerContents] = {}

    def note(self, look: Look) -> None:
        """Take in what a scheduler tells."""
        for number in look.lost:
            self._workers.pop((look.scheduler, number), None)
        for change in look.workers:
            self._workers.setdefault((look.scheduler, change.number), WorkerContents()).note(change)

    def forget(self, scheduler: str) -> None:
        """Nothing of this scheduler is known any more."""
        self._workers = {key: value for key, value in self._workers.items() if key[0] != scheduler}

    def of(self, scheduler: str, worker: int, block: int) -> BlockContent | None:
        """What a block holds; None if that is not known."""
        known = self._workers.get((scheduler, worker))
        return None if known is None else known.of(block)
