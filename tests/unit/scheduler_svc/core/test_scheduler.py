"""The scheduler as a whole: what is taken in, handed back and given up."""

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.plan import StepResult
from scheduler_svc.core.request import SoFar
from scheduler_svc.core.suspicion import Loss

MakeBench = Callable[..., Any]


def test_a_batch_at_rest_hands_back_its_slots(bench: MakeBench) -> None:
    one = bench()
    one.arrive([1], max_tokens=1)
    one.step()
    last = one.step()
    assert (last.freed_slots, last.rows.slots) == ((0,), ())
    assert one.scheduler.plan() is None
    assert one.scheduler.idle
    assert one.worker.slots == {}


def test_cancelled_in_flight_is_dropped(bench: MakeBench) -> None:
    one = bench()
    group = one.arrive([1] * 9, n=2, max_tokens=9)
    plan = one.plan()
    one.fleet.cancel(group)
    assert one.scheduler.state.batch.pool.free_blocks == 16
    assert one.complete(plan).gains == []
    one.run()
    assert one.scheduler.idle


def test_an_answer_to_nothing_is_a_fault(bench: MakeBench) -> None:
    with pytest.raises(WorkerFault):
        bench().scheduler.complete(StepResult(1, []))


def test_what_holds_no_slot_can_be_withdrawn(bench: MakeBench) -> None:
    one = bench(max_slots=2)
    running = one.arrive([1] * 3, max_tokens=9)
    one.step()
    samples = one.arrive([2] * 3, n=2, max_tokens=9)
    one.step()  # one of the two gets the second slot, the other is to fork and finds none
    waits = [one.arrive([number] * 3, max_tokens=9) for number in (3, 4)]
    assert one.scheduler.withdraw_waiting(1.0) == waits
    one.scheduler.check_integrity()
    assert one.scheduler.unfinished == 2
    one.run()
    assert not running.unfinished
    assert not samples.unfinished


def test_a_lost_worker_hands_all_back_and_suspects_those_in_flight(bench: MakeBench) -> None:
    one = bench(max_slots=2)
    gained = one.arrive([1] * 3, max_tokens=9)
    one.step()
    touched, late = (one.arrive([number] * 3, max_tokens=9) for number in (2, 3))
    one.plan()
    assert one.scheduler.suspects(Loss.DEATH) == {gained: {0: (3, 4)}, touched: {0: (0, 3)}}
    assert one.scheduler.suspects(Loss.OUTSIDE) == {}
    assert one.scheduler.evacuate() == [gained, touched, late]
    assert all(group.sequences[0].table is None for group in (gained, touched, late))
    assert list(gained.sequences[0].tokens[3:]) == one.fake.reference(gained.request, 0, 64)[:1]


def test_the_place_of_a_suspect_that_has_rolled_is_that_of_its_whole_text(bench: MakeBench) -> None:
    one = bench(max_model_len=32)
    known = SoFar(0, array("i", [1] * 60), False)
    group = one.arrive([1] * 8, rolling=True, max_tokens=100, grammar=b"x", resumed=(known,))
    (sequence,) = group.sequences
    assert (sequence.dropped_tokens, len(sequence.tokens)) == (48, 20)
    for _ in range(2):
        one.step()
    assert one.scheduler.plan() is None, "its grammar is being compiled"
    assert one.scheduler.suspects(Loss.DEATH) == {group: {0: (67, 68)}}


def test_a_free_slot_is_no_room_without_blocks(bench: MakeBench) -> None:
    one = bench(num_blocks=4, block_size=4, max_slots=4)
    long, late = one.arrive([1] * 10, max_tokens=6), one.arrive([2] * 10, max_tokens=6)
    assert one.scheduler.room == 4
    one.step()
    assert one.scheduler.state.batch.free_slots
    assert (one.scheduler.room, one.fleet.waiting().of("")) == (0, (1, 10))
    while long.unfinished:
        one.step()
    one.step()
    assert (one.scheduler.room, one.fleet.waiting().of("")) == (3, (0, 0))
    one.run()
    assert not late.unfinished
