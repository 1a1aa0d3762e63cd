"""Differences for a person."""

from ops.replay.shown import differences
from proto.arrays import pack
from proto.worker_pb2 import NewSlot, Rows, StepPlan


def test_equal_messages_have_none() -> None:
    assert list(differences(StepPlan(step=1), StepPlan(step=1))) == []


def test_an_array_is_shown_from_before_its_first_difference_on() -> None:
    one, other = (StepPlan(rows=Rows(slots=pack([*range(9), last]))) for last in (70, 80))
    assert list(differences(one, other)) == [
        "rows.slots, from number 6 on: 6, 7, 8, 70 recorded, 6, 7, 8, 80 now"
    ]


def test_what_is_longer_shows_what_it_has_more() -> None:
    one, other = StepPlan(draft_tokens=pack([1])), StepPlan()
    assert list(differences(one, other)) == ["draft_tokens, from number 0 on: 1 recorded, nothing now"]


def test_messages_in_a_list_are_compared_one_by_one() -> None:
    one = StepPlan(step=3, new_slots=[NewSlot(slot=1), NewSlot(slot=2)])
    other = StepPlan(step=4, new_slots=[NewSlot(slot=5)])
    assert list(differences(one, other)) == [
        "step: 3 recorded, 4 now",
        "new_slots: 2 recorded, 1 now",
        "new_slots[0].slot: 1 recorded, 5 now",
    ]
