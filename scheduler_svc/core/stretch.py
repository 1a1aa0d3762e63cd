"""Many equal steps at once, for virtual time.

While nobody waits, prefills or ends, one step is like the next: a result comes, every running sequence
gains a token, and the same rows are planned again. A simulation need not take such steps one by one. What
`advance` leaves is what as many calls of `complete` and `plan` leave, down to the order of the free blocks;
only what the plans would have told the worker is left out, for there is no worker.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scheduler_svc.core.batch import Batch
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.sequence import Sequence, State

TOKEN = 0
"""What every row gains."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A plan that the worker has not answered yet: whose rows it has, as they were then."""

    plan: StepPlan
    sequences: list[Sequence]
    epochs: list[int]
    embedded: Iterable[int] = ()
    """Rows with which an embedding is complete."""


def longest(batch: Batch, flights: deque[Flight]) -> int:
    """For how many steps the rows in flight stay as they are, if nobody comes; nobody may wait.

    0 if they do not, or if memory might not do. The answer may be less than what is possible.
    """
    running = batch.running
    if not running or not flights or batch.freed_slots:
        return 0
    epochs, rows = [sequence.epoch for sequence in running], len(running)
    for flight in flights:
        plan = flight.plan
        if plan.copies.sources or plan.swap_out.blocks or plan.swap_in.blocks:
            return 0
        if flight.sequences != running or flight.epochs != epochs:
            return 0
        if sum(plan.rows.counts) != rows or sum(plan.rows.samples) != rows:
            return 0
    for sequence in running:
        group = sequence.group
        if (
            sequence.state is not State.DECODE
            or group.held
            or group.beams
            or TOKEN in group.request.stop_token_ids
        ):
            return 0
        if group.request.rolling:
            return 0
    steps = min(sequence.group.limit - sequence.planned for sequence in running) - 1
    pool = batch.pool
    free = pool.free_blocks if pool.host is None else pool.empty_blocks  # an eviction would take its time
    while steps > 0 and _blocks_for(batch, steps) > free:
        steps //= 2
    return max(0, steps)


def advance(
    batch: Batch, flights: deque[Flight], steps: int, cache: Callable[[Sequence], None]
) -> list[Flight]:
    """Take `steps` steps, `longest` at most. The flights that are under way then.

    `cache`: tells the block cache of a sequence's confirmed blocks.
    """
    gained, running = array("i", [TOKEN]) * steps, batch.running
    before = [sequence.computed for sequence in running]
    events = _block_events(batch, steps)
    for sequence in running:
        sequence.tokens += gained
        sequence.planned += steps
        sequence.group.gained = True
    for number, grows, row in events:
        sequence = running[row]
        if grows:
            assert sequence.table is not None
            sequence.table.grow(1)
        else:
            sequence.computed = before[row] + number
            if sequence.computed % batch.limits.block_size == 0:
                cache(sequence)
            assert sequence.table is not None
            sequence.table.drop(batch.limits.outside_window(sequence.computed))
    for sequence, computed in zip(running, before, strict=True):
        sequence.computed = computed + steps
    return [_later(flight, steps) for flight in flights]


def _blocks_for(batch: Batch, steps: int) -> int:
    """Blocks that so many steps take from the pool."""
    size, blocks = batch.limits.block_size, 0
    for sequence in batch.running:
        assert sequence.table is not None
        missing = sequence.planned + steps - sequence.table.room
        if missing > 0:
            blocks += -(-missing // size)
    return blocks


def _block_events(batch: Batch, steps: int) -> list[tuple[int, bool, int]]:
    """(step, whether a block is needed rather than full or outside the window, row), as they come.

    The order decides who gets which block, and what is evicted. A step's result comes before its plan.
    """
    size, window = batch.limits.block_size, batch.limits.window
    events = []
    for row, sequence in enumerate(batch.running):
        assert sequence.table is not None
        to_full = size - sequence.computed % size
        to_need = sequence.table.room - sequence.planned + 1
        if to_full <= steps:
            events += [(step, False, row) for step in range(to_full, steps + 1, size)]
        if window:
            assert sequence.table is not None
            to_drop = (sequence.table.dropped + 1) * size + window - sequence.computed
            events += [(step, False, row) for step in range(to_drop, steps + 1, size)]
        if to_need <= steps:
            events += [(step, True, row) for step in range(to_need, steps + 1, size)]
    events.sort()
    return events


def _later(flight: Flight, steps: int) -> Flight:
    step, rows = flight.plan.step, flight.plan.rows
    later = StepPlan(step + steps, rows=rows._replace(starts=tuple([start + steps for start in rows.starts])))
    return Flight(later, flight.sequences, flight.epochs)
