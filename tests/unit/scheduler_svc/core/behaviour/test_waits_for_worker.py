"""Slots of sequences that wait for the worker, which compiles their grammars or looks at their images."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.core.shares import TURN
from tests.support.programs import images_at

MakeBench = Callable[..., Any]
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]


def seated(groups: list[SequenceGroup]) -> int:
    return sum(group.sequences[0].table is not None for group in groups)


@pytest.mark.parametrize("rest", [[], [9], [9, 9]])
def test_grammars_keep_no_slot_for_longer_than_a_turn(bench: MakeBench, rest: list[int]) -> None:
    """However much of the prompt is cached: of all but its last token nothing is left to compute."""
    one = bench(num_blocks=64)
    one.arrive([*PROMPT, 9], max_tokens=1)
    one.run()
    asked = [one.arrive([*PROMPT, *rest], tenant="a", grammar=b"%d" % number) for number in range(3)]
    asked.append(one.arrive([9], tenant="a", max_tokens=50))
    one.step()
    others = [one.arrive([number] * 3, tenant="b", max_tokens=50) for number in range(2)]
    for _ in range(TURN - 1):
        one.step()
        assert (seated(asked), seated(others)) == (4, 0)
    for _ in range(2):
        one.step()
    assert (seated(asked), seated(others)) == (2, 2)
    one.compile()
    one.run()
    assert not any(group.unfinished for group in (*asked, *others))


@pytest.mark.parametrize("images", [False, True])
def test_nobody_waits_for_a_worker_that_has_no_step_to_do(bench: MakeBench, images: bool) -> None:
    one = bench(num_blocks=64, images=True)
    fields = {"images": images_at([(0, 4, 0)], 8)} if images else {"grammar": b"x"}
    asked = [one.arrive([number, *PROMPT], tenant="a", max_tokens=9, **fields) for number in range(4)]
    while seated(asked) < 4:
        one.step()
    others = [one.arrive([number] * 3, tenant="b", max_tokens=9) for number in range(2)]
    while (plan := one.scheduler.plan()) is not None:
        one.complete(plan)
    assert not any(group.unfinished for group in others)
    one.compile()
    one.look()
    one.run()
    assert not any(group.unfinished for group in asked)


@pytest.mark.parametrize("slots", [1, 2])
def test_last_slots_are_free_while_the_worker_has_no_step_to_do(bench: MakeBench, slots: int) -> None:
    """Images would be looked at anew; a grammar is compiled in any case."""
    for fields in ({"grammar": b"x"}, {"images": images_at([(2, 4, 0)], 8)}):
        one = bench(num_blocks=64, max_slots=slots, images=True)
        asked = [one.arrive([number, *PROMPT], tenant=f"asks {number}", **fields) for number in range(slots)]
        while seated(asked) < slots:
            one.step()
        others = [one.arrive([9, number], tenant="b", max_tokens=9) for number in range(2)]
        while (plan := one.scheduler.plan()) is not None:
            one.complete(plan)
        assert [group.unfinished for group in others] == ([1, 1] if "images" in fields else [0, 0])
        assert seated(asked) == slots
        one.compile()
        one.look()
        one.run()
        assert not any(group.unfinished for group in (*asked, *others))


def test_a_last_slot_does_not_go_round_among_those_that_wait_for_grammars(bench: MakeBench) -> None:
    one = bench(num_blocks=64, max_slots=1)
    first, *_ = asked = [
        one.arrive(PROMPT, tenant=name, max_tokens=9, grammar=name.encode()) for name in "ab"
    ]
    for _ in range(4):
        if (plan := one.scheduler.plan()) is not None:
            one.complete(plan)
    assert plan is None
    assert (seated([first]), seated(asked)) == (1, 1)


def test_images_that_take_longer_than_a_turn_are_seen_all_the_same(bench: MakeBench) -> None:
    """Who loses its slot meanwhile has them seen again."""
    one = bench(500, num_blocks=4000, max_slots=2, max_model_len=2000, max_step_tokens=500, images=True)
    for number in range(6):
        one.arrive([3 + number], tenant=f"steady {number}")
    images = images_at([(2, 4, 0)], 8)
    asked = one.arrive([1, *PROMPT], tenant="asked", max_tokens=5, images=images)
    begun: dict[int, int] = {}
    for now in range(30 * TURN):
        if (plan := one.scheduler.plan()) is not None:
            one.complete(plan)
        sights = {sequence.sight for sequence in one.scheduler.state.batch.running if sequence.sight}
        begun = {sight: begun.get(sight, now) for sight in sights}
        for sight, since in begun.items():
            if now - since > 3 * TURN:
                one.worker.sights[sight] = True
                one.scheduler.seen(sight)
    assert not asked.unfinished
