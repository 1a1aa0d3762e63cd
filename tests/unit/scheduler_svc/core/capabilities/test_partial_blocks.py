"""Blocks that a text fills in part are named where messages end, and copied by who goes on there."""

from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scheduler_svc.core.capabilities import partial_blocks
from scheduler_svc.core.request import SoFar

MakeBench = Callable[..., Any]
STOP = 30
SYSTEM = [1, 2, 3, STOP]
QUESTION = [4, 5, STOP]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such short blocks would be worth no step."""
    monkeypatch.setattr(partial_blocks, "STEPS", 0)


def test_the_next_turn_begins_where_the_answer_ended(alone: MakeBench) -> None:
    """A worker that is one plan ahead has computed the stop token, too. Two ahead are too many: then the turn
    begins behind the question."""
    for depth, behind in ((1, -1), (2, 0)):
        one = alone(depth, recurrent=True, block_size=32)
        prompt, stop, answer = _answered(one)
        first = one.arrive(prompt, stop_token_ids=frozenset({stop}))
        one.run()
        assert one.given[first] == [answer]
        second = one.arrive([*prompt, *answer, 6, 7], stop_token_ids=frozenset({stop}), max_tokens=3)
        one.run()
        one.check(second)
        assert second.cached_tokens == len(prompt) + len(answer) + behind
        assert one.scheduler.state.batch.pool.cached_blocks == 1 + (depth == 1)


def test_an_answer_of_which_too_much_is_in_flight_has_no_name(alone: MakeBench) -> None:
    one = alone(3, recurrent=True, block_size=32)
    prompt, stop, answer = _answered(one)
    one.arrive(prompt, stop_token_ids=frozenset({stop}))
    one.run()
    second = one.arrive([*prompt, *answer, 6, 7], stop_token_ids=frozenset({stop}), max_tokens=3)
    one.run()
    one.check(second)
    assert second.cached_tokens == 0


def test_an_answer_whose_last_row_fails_has_no_name(alone: MakeBench) -> None:
    one = alone(2, recurrent=True, block_size=32)
    prompt, stop, answer = _answered(one)
    group = one.arrive(prompt, stop_token_ids=frozenset({stop}))
    while len(one.given[group][0]) < len(answer):
        one.step()
    (late,) = one.results
    one.results[0] = replace(late, tokens=[-1], errors={0: "memory"})
    assert one.scheduler.state.ended_answers
    one.run()
    pool = one.scheduler.state.batch.pool
    assert (pool.cached_blocks, pool.empty_blocks) == (0, one.limits.num_blocks)


def test_chunks_end_behind_the_first_and_the_last_message(bench: MakeBench) -> None:
    """Another chat begins behind the first one, another answer behind the last one."""
    one, stops = bench(recurrent=True, block_size=32), frozenset({STOP})
    first = one.arrive([*SYSTEM, *QUESTION, *QUESTION, 9], stop_token_ids=stops, max_tokens=2)
    plans = [one.step() for _ in range(3)]
    assert [plan.rows.counts for plan in plans] == [(4,), (6,), (1,)]
    assert [len(plan.copies.targets) for plan in plans] == [0, 1, 1]
    one.run()
    for prompt, cached in (
        ([*SYSTEM, 8, 8, 8], 4),
        ([*SYSTEM, *QUESTION, *QUESTION, 8], 10),
        ([*SYSTEM, *QUESTION, *QUESTION, 9], 10),
        (SYSTEM, 0),
        ([7, *SYSTEM], 0),
    ):
        group = one.arrive(prompt, stop_token_ids=stops, max_tokens=2, seed=5)
        one.run()
        (tokens,) = (each.tokens[len(prompt) :].tolist() for each in group.sequences)
        assert tokens == one.fake.reference(group.request, 0, 64)
        assert group.cached_tokens == cached, prompt
    assert first.cached_tokens == 0


def test_who_comes_at_the_same_time_waits_for_what_is_the_same(bench: MakeBench) -> None:
    """One computes it; if that one ends, the next does."""
    for cancels in (False, True):
        one, stops = bench(recurrent=True, block_size=32), frozenset({STOP})
        prompts = [[*SYSTEM, *QUESTION, 9], [*SYSTEM, *QUESTION, 8], [*SYSTEM, 6, 6], [*SYSTEM, 7]]
        groups = [one.arrive(each, stop_token_ids=stops, max_tokens=3) for each in prompts]
        assert one.step().rows.counts == (4,)
        if cancels:
            one.scheduler.cancel(groups[0])
            assert one.step().rows.counts == (4,)
        one.run()
        for group in groups[cancels:]:
            _check(one, group)
        cached = [group.cached_tokens for group in groups]
        assert cached == ([0, 0, 4, 4] if cancels else [0, 7, 4, 4])


def test_nobody_waits_for_what_is_not_made(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It turns out that tokens of prompts take no time: whoever waits computes by itself."""
    monkeypatch.setattr(partial_blocks, "STEPS", 0.25)
    one, stops = bench(recurrent=True, block_size=32), frozenset({STOP})
    groups = [one.arrive([*SYSTEM, 6, each], stop_token_ids=stops, max_tokens=9) for each in (1, 2)]
    assert one.step().rows.counts == (4,)
    assert one.scheduler.state.unfinished.followers() == groups[1].sequences
    budget = one.scheduler.state.prefill_budget
    budget.learn([1], [1], 100)
    budget.learn([10], [0], 1)
    assert one.step().rows.counts == (2, 6)
    assert not one.scheduler.state.unfinished.followers()
    one.run()
    for group in groups:
        _check(one, group)
        assert group.cached_tokens == 0


def test_nothing_is_named_that_is_computed_as_fast(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten tokens of a prompt take as long as four steps that decode, here."""
    monkeypatch.setattr(partial_blocks, "STEPS", 4)
    one, stops = bench(recurrent=True, block_size=32), frozenset({STOP})
    budget = one.scheduler.state.prefill_budget
    budget.learn([1], [1], 100)
    budget.learn([10], [0], 400)
    for tokens, expected in ((8, [(11,)]), (9, [(10,), (2,)])):
        group = one.arrive([*[1] * tokens, STOP, 2, 3], stop_token_ids=stops, max_tokens=1)
        assert [one.step().rows.counts for _ in expected] == expected
        assert not group.unfinished


def test_where_memory_is_short_nothing_is_copied(bench: MakeBench) -> None:
    """The longest sequence needs all blocks: it begins anew, and ends."""
    one, stops = bench(recurrent=True, block_size=8, num_blocks=4), frozenset({STOP})
    one.arrive([1, 2, STOP, 3], stop_token_ids=stops, max_tokens=1)
    one.run()
    assert one.scheduler.state.batch.pool.cached_blocks == 1
    group = one.arrive([1, 2, STOP, *range(4, 27)], stop_token_ids=stops, max_tokens=6)
    one.run()
    assert group.cached_tokens == 0
    assert not group.unfinished


def test_a_block_comes_back_from_the_host(bench: MakeBench) -> None:
    one, stops = bench(recurrent=True, block_size=8, num_blocks=4, host_blocks=4), frozenset({STOP})
    one.arrive([1, 2, STOP, 3], stop_token_ids=stops, max_tokens=1)
    one.run()
    one.arrive(list(range(20)), max_tokens=12)  # takes all blocks
    one.run()
    assert one.worker.swapped_out
    group = one.arrive([1, 2, STOP, 4, 5], stop_token_ids=stops, max_tokens=4)
    one.run()
    assert group.cached_tokens == 3
    assert one.worker.swapped_in == 1
    (tokens,) = (each.tokens[5:].tolist() for each in group.sequences)
    assert tokens == one.fake.reference(group.request, 0, 32)


def test_who_may_not_see_a_prefix_finds_no_block_of_it(bench: MakeBench) -> None:
    one, stops = bench(recurrent=True, block_size=32), frozenset({STOP})
    for salt, expected in (("a", 0), ("b", 0), ("a", 4)):
        group = one.arrive([*SYSTEM, 8], stop_token_ids=stops, max_tokens=1, salt=salt)
        one.run()
        assert group.cached_tokens == expected


def test_other_workers_name_full_blocks_alone(bench: MakeBench) -> None:
    one = bench(block_size=32)
    one.arrive([*SYSTEM, *QUESTION, 9], stop_token_ids=frozenset({STOP}), max_tokens=2)
    assert one.step().rows.counts == (8,)
    one.run()
    assert not one.scheduler.state.batch.pool.cached_blocks
    assert not one.worker.copies


def _check(one: Any, group: Any) -> None:
    """The group has ended with the tokens that it gets alone."""
    (tokens,) = (each.tokens[len(group.request.prompt) :].tolist() for each in group.sequences)
    assert tokens == one.fake.reference(group.request, 0, group.limit)


def _answered(one: Any) -> tuple[list[int], int, list[int]]:
    """A prompt, a token that stops its answer and is not in the prompt, and the answer with it."""
    prompt = [2, 3, 1, 2, 1]
    request = one.fake.request(prompt, max_tokens=8)
    answer = one.fake.reference(request, 0, 64)
    at = next(place for place, token in enumerate(answer) if place > 1 and token not in answer[:place])
    stop = answer[at]
    assert stop not in prompt
    return prompt, stop, answer[: at + 1]


def test_samples_that_go_on_do_not_fork_from_a_copy_in_the_step_that_makes_it(bench: MakeBench) -> None:
    """They are admitted before a prompt that runs already, as another tenant's are."""
    one, stops = bench(token_budget=8, recurrent=True, block_size=32), frozenset({STOP})
    one.arrive([*SYSTEM, 7], stop_token_ids=stops, max_tokens=2)
    one.run()
    one.arrive([6] * 20, max_tokens=2, tenant="long")
    one.step()
    prompt, fields = [*SYSTEM, 9], {"stop_token_ids": stops, "max_tokens": 6, "n": 2}
    expected = [one.fake.reference(one.fake.request(prompt, **fields), index, 64) for index in range(2)]
    known = tuple(SoFar(index, array("i", tokens[:2]), False) for index, tokens in enumerate(expected))
    group = one.arrive(prompt, **fields, resumed=known)
    one.run()
    assert [each.tokens[len(prompt) :].tolist() for each in group.sequences] == expected
