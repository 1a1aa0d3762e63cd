"""Advances a scheduler by many equal steps at once, for virtual time.

While no sequence waits, prefills or ends, all steps are equal: a result comes, every running sequence gains a
token, and the same rows are planned again. A simulation need not make such steps one by one. `advance` leaves
a scheduler in the state in which the same number of calls of `complete` and `plan` would leave it, down to
the order of the free blocks. It makes no plans, because there is no worker to read them.
"""

from array import array
from collections import deque
from collections.abc import Iterable

from scheduler_svc.core.flight import Flight
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.policies import Policy
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.state import SchedulerState

TOKEN = 0
"""The token that every row gains."""


def longest(scheduler: Scheduler) -> int:
    """A number of next steps that are equal, if no request arrives meanwhile.

    0 if the next steps are not equal, or memory may be too small for them.
    """
    state, flights = scheduler.state, scheduler.flights
    if state.speculation is not None or not _is_steady(state.policy) or state.waiting.peek():
        return 0
    batch = state.batch
    if not batch.running or not flights or batch.freed_slots:
        return 0
    if not _all_decode_on(batch.running) or not _repeat(flights, batch.running):
        return 0
    steps = min(sequence.group.limit - sequence.planned for sequence in batch.running) - 1
    pool = batch.pool
    free = (
        pool.free_blocks if pool.host is None else pool.empty_blocks
    )  # with host memory an eviction is a swap, which takes time
    if state.shares.contended:  # with fewer blocks than rows, rows are in another order
        free -= len(batch.running)
    while steps > 0 and _blocks_for(state, steps) > free:
        steps //= 2
    return max(0, steps)


def advance(scheduler: Scheduler, steps: int) -> list[Sequence]:
    """Do what `steps` calls of `complete` and `plan` do. Returns the sequences of each step's rows.

    `steps`: at most the result of `longest`. A request may have been submitted since, as it may while plans
    are in flight.
    """
    state = scheduler.state
    gained, running = array("i", [TOKEN]) * steps, state.batch.running
    before = [sequence.computed for sequence in running]
    events = _block_events(state, steps)
    for sequence in running:
        sequence.tokens += gained
        sequence.planned += steps
    for number, grows, row in events:
        sequence = running[row]
        assert sequence.table is not None
        if grows:
            sequence.table.grow(1)
        else:
            sequence.computed = before[row] + number
            if sequence.computed % state.limits.block_size == 0:
                state.name_blocks(sequence)
            sequence.table.drop(state.limits.outside_window(sequence.computed))
    for sequence, computed in zip(running, before, strict=True):
        sequence.computed = computed + steps
    scheduler.flights = deque(_later(flight, steps) for flight in scheduler.flights)
    scheduler.step += steps
    state.shares.step = scheduler.step
    state.shares.forget()
    return scheduler.flights[0].sequences


def _is_steady(policy: Policy) -> bool:
    """Whether the policy does not order rows, so that equal steps stay equal."""
    return type(policy).decodes is Policy.decodes


def _repeat(flights: Iterable[Flight], running: list[Sequence]) -> bool:
    """Whether each plan in flight has one decode of every running sequence, in order, and nothing else."""
    epochs, rows = [sequence.epoch for sequence in running], len(running)
    for flight in flights:
        plan = flight.plan
        if plan.copies.sources or plan.swap_out.blocks or plan.swap_in.blocks:
            return False
        if flight.sequences != running or flight.epochs != epochs:
            return False
        if sum(plan.rows.counts) != rows or sum(plan.rows.samples) != rows:
            return False
    return True


def _all_decode_on(running: list[Sequence]) -> bool:
    """Whether the sequences do nothing but decode until they reach their limits."""
    for sequence in running:
        group = sequence.group
        if sequence.state is not State.DECODE or group.held or group.beam_round is not None:
            return False
        if TOKEN in group.request.stop_token_ids or group.request.rolling:
            return False
    return True


def _blocks_for(state: SchedulerState, steps: int) -> int:
    """Blocks that `steps` steps take from the pool."""
    size, blocks = state.limits.block_size, 0
    for sequence in state.batch.running:
        assert sequence.table is not None
        missing = sequence.planned + steps - sequence.table.room
        if missing > 0:
            blocks += -(-missing // size)
    return blocks


def _block_events(state: SchedulerState, steps: int) -> list[tuple[int, bool, int]]:
    """The changes of block tables, in order of time, as (step, whether a block is needed, row).

    If no block is needed, one is full or outside the attention window. The order decides which row gets which
    block, and which block is evicted. A step's result comes before its plan.
    """
    size, window = state.limits.block_size, state.limits.window
    events = []
    for row, sequence in enumerate(state.batch.running):
        assert sequence.table is not None
        to_full = size - sequence.computed % size
        to_need = sequence.table.room - sequence.planned + 1
        if to_full <= steps:
            events += [(step, False, row) for step in range(to_full, steps + 1, size)]
        if window:
            to_drop = (sequence.table.dropped + 1) * size + window - sequence.computed
            events += [(step, False, row) for step in range(to_drop, steps + 1, size)]
        if to_need <= steps:
            events += [(step, True, row) for step in range(to_need, steps + 1, size)]
    events.sort()
    return events


def _later(flight: Flight, steps: int) -> Flight:
    """The plan in flight with the same rows, `steps` steps later."""
    step, rows = flight.plan.step, flight.plan.rows
    later = StepPlan(step + steps, rows=rows._replace(starts=tuple([start + steps for start in rows.starts])))
    return Flight(later, flight.sequences, flight.epochs)
