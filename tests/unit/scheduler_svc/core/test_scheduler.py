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
    assert one.scheduler.withdraw_waiting() == waits
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


def test_those_for_whom_slots_are_free_do_not_count_as_waiting(bench: MakeBench) -> None:
    one = bench(max_slots=2)
    groups = [one.arrive([number] * 3, max_tokens=9) for number in range(4)]
    assert one.scheduler.waiting() == [(group, 1, 3) for group in groups[2:]]
    one.step()
    assert one.scheduler.waiting() == [(group, 1, 3) for group in groups[2:]]
    assert one.scheduler.admitted_tokens == 6


def test_samples_that_wait_for_their_first_are_counted_at_once(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bench(max_slots=2)
    many, resumed = one.arrive([1] * 3, n=100), one.arrive([2] * 3, n=3, resumed=(so_far(1, 5), so_far(2, 1)))
    assert one.scheduler.waiting() == [(many, 98, 294), (resumed, 1, 3), (resumed, 2, 12)]
    one.scheduler.state.short_of_blocks = True
    assert one.scheduler.waiting()[:2] == [(many, 1, 3), (many, 99, 297)]
    assert len(one.scheduler.waiting()) == 4
    assert one.fleet.waiting() == {"": (2, 315)}


def so_far(index: int, count: int) -> SoFar:
    return SoFar(index, array("i", [3] * count), finished=False)


def test_a_free_slot_is_no_room_without_blocks(bench: MakeBench) -> None:
    one = bench(num_blocks=4, block_size=4, max_slots=4)
    long, late = one.arrive([1] * 10, max_tokens=6), one.arrive([2] * 10, max_tokens=6)
    one.step()
    assert one.scheduler.state.batch.free_slots
    assert one.scheduler.waiting() == [(late, 1, 10)]
    while long.unfinished:
        one.step()
    one.step()
    assert not one.scheduler.waiting()
    one.run()
    assert not late.unfinished
