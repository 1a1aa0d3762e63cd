"""Checks that queue, groups, batch and blocks agree: in tests after every step, in a service when idle."""

from collections.abc import Iterable

from scheduler_svc.core.capabilities import beams
from scheduler_svc.core.errors import IntegrityError
from scheduler_svc.core.flight import Flight
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.state import SchedulerState


def check_integrity(state: SchedulerState, flights: Iterable[Flight]) -> None:
    """Raise `IntegrityError` if the state contradicts itself; see also `Batch` and `BlockPool`."""
    flights = list(flights)
    copied = [block for flight in flights for block in flight.plan.copies.sources]
    named = [each for flight in flights for each in flight.named_blocks]
    named += state.ended_answers.values()
    state.batch.check_integrity([*copied, *(each.block for each in named)])
    state.waiting.check_integrity()
    running = {id(sequence) for sequence in state.batch.running}
    for group in state.groups:
        name, alive = group.request.request_id, group.alive()
        if len(alive) != group.unfinished or not alive:
            raise IntegrityError(f"{name}: {len(alive)} sequences where {group.unfinished} are unfinished")
        running -= {id(sequence) for sequence in alive}
        for sequence in alive:
            if (sequence.state in (State.PREFILL, State.DECODE)) != (sequence.table is not None):
                raise IntegrityError(f"{name}: state {sequence.state.value} does not go with its block table")
    if running:
        raise IntegrityError(f"{len(running)} sequences run that belong to no request")
    waiting = {id(each) for each in [*state.waiting.sequences(), *state.unfinished.followers()]}
    due = {id(each) for group in state.groups for each in group.alive() if _is_due_to_wait(each)}
    if waiting != due:
        raise IntegrityError(f"{len(waiting)} sequences wait where {len(due)} should")


def _is_due_to_wait(sequence: Sequence) -> bool:
    """Whether the sequence must be in the queue, or wait for a prefix."""
    elsewhere = sequence.state is State.FORK or sequence in sequence.group.held or beams.is_parked(sequence)
    return sequence.table is None and not elsewhere
