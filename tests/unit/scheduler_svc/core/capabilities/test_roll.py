"""Texts that go on past the model's context."""

from array import array
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from proto.sampling_pb2 import SamplingParams
from scheduler_svc.core.capabilities.roll import roll
from scheduler_svc.core.draft_state import Forced
from scheduler_svc.core.errors import RequestRefused
from scheduler_svc.core.limits import length_limit
from scheduler_svc.core.request import SoFar
from scheduler_svc.core.rolling import dropped
from scheduler_svc.core.sequence import State
from scheduler_svc.wire import plan_to

Make = Callable[..., Any]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("max_tokens", [1, 8, 9, 23, 24, 25, 200])
def test_a_text_longer_than_the_context(alone: Make, depth: int, max_tokens: int) -> None:
    one = alone(depth, max_model_len=32)
    group = one.arrive(PROMPT, rolling=True, max_tokens=max_tokens)
    one.run()
    one.check(group)
    assert one.scheduler.idle
    assert one.most_held <= 8, "no more than one context"


def test_without_end_until_it_is_cancelled(alone: Make) -> None:
    one = alone(max_model_len=32)
    group = one.arrive(PROMPT, rolling=True)
    one.run(3000)
    (given,) = one.given[group]
    assert len(given) > 2500
    assert given == one.fake.reference(replace(group.request, max_tokens=len(given)), 0, 32)
    (sequence,) = group.sequences
    assert len(sequence.tokens) <= 32
    assert len(sequence.chain) <= 8
    assert sequence.output_tokens == len(given)
    one.fleet.cancel(group)
    one.run()
    assert one.scheduler.idle
    assert one.scheduler.held_blocks == 0


def test_it_stops_at_a_stop_token_after_a_roll(alone: Make) -> None:
    one = alone(max_model_len=32)
    whole = one.fake.reference(one.fake.request(PROMPT, rolling=True, max_tokens=300), 0, 32)
    late = next(token for token in reversed(whole) if token not in whole[:40])
    group = one.arrive(PROMPT, rolling=True, stop_token_ids=frozenset({late}))
    one.run()
    one.check(group)
    assert one.given[group] == [whole[: whole.index(late) + 1]]


@pytest.mark.parametrize("known", [10, 23, 24, 25, 39, 40, 41, 90])
def test_it_is_taken_up_on_another_worker(alone: Make, known: int) -> None:
    one = alone(max_model_len=32)
    whole = one.fake.reference(one.fake.request(PROMPT, rolling=True, max_tokens=120), 0, 32)
    so_far = (SoFar(0, array("i", whole[:known]), False),)
    group = one.arrive(PROMPT, rolling=True, max_tokens=120, resumed=so_far)
    one.run()
    assert one.given[group] == [whole]


def test_its_worker_is_lost_again_and_again(alone: Make) -> None:
    one = alone(max_model_len=32)
    group = one.arrive(PROMPT, rolling=True, max_tokens=300)
    while group.unfinished:
        one.run(11)
        assert not one.fleet.remove_worker(one.scheduler).failed
        one.join()
    one.check(group)


def test_samples_go_on_each_for_itself(alone: Make) -> None:
    one = alone(max_model_len=32, num_blocks=32)
    group = one.arrive(PROMPT, rolling=True, max_tokens=100, n=3)
    one.run()
    one.check(group)
    assert one.worker.copies == 2, "they shared the prompt"
    assert one.given[group][0] != one.given[group][1]


def test_samples_that_have_rolled_do_not_fork(alone: Make) -> None:
    one = alone(max_model_len=32, num_blocks=32)
    request = one.fake.request(PROMPT, rolling=True, max_tokens=100, n=3)
    whole = [one.fake.reference(request, index, 32) for index in range(3)]
    so_far = tuple(
        SoFar(index, array("i", whole[index][:count]), False) for index, count in ((0, 50), (1, 3))
    )
    group = one.arrive(PROMPT, rolling=True, max_tokens=100, n=3, resumed=so_far)
    one.run()
    assert one.given[group] == whole


def test_many_beside_each_other_in_too_small_a_pool(alone: Make) -> None:
    one = alone(max_model_len=32, num_blocks=12)
    groups = [one.arrive([token], rolling=True, max_tokens=150, seed=token) for token in range(4)]
    one.run()
    for group in groups:
        one.check(group)


def test_what_is_cached_after_a_roll_is_found_by_its_content(alone: Make) -> None:
    one = alone(max_model_len=32, num_blocks=64)
    group = one.arrive(PROMPT, rolling=True, max_tokens=30)
    one.run()
    text = [*PROMPT, *one.given[group][0]]
    assert dropped(len(text), 32) == 16
    context = text[:4] + text[20:]
    before = one.worker.computed_tokens
    other = one.arrive(context, max_tokens=5)
    one.run()
    one.check(other)
    # All but what a last block lacks comes out of the cache; the text itself would not have been found there.
    assert one.worker.computed_tokens - before <= 4 + 5


def test_what_the_worker_is_told(alone: Make) -> None:
    one = alone(max_model_len=32)
    sampling = SamplingParams(seed=5)
    group, _ = one.fleet.accept(replace(one.fake.request([1] * 30, rolling=True), sampling=sampling))
    (sequence,) = group.sequences
    sequence.tokens = sequence.tokens + array("i", [2] * 3)
    roll(sequence)
    assert sequence.state is State.WAITING
    plan = one.scheduler.plan()
    assert plan is not None
    (new,) = plan_to(plan).new_slots
    assert new.dropped_tokens == 16
    assert len(new.tokens) == 4 * 17
    assert new.prompt_length == 14, "what penalties count as output are the three tokens after it"


def test_what_a_grammar_forced_before_a_roll_is_not_forced_behind_it(alone: Make) -> None:
    """Its positions are others now."""
    one = alone(max_model_len=32)
    group = one.arrive(PROMPT, rolling=True, grammar=b"x")
    (sequence,) = group.sequences
    sequence.tokens = sequence.tokens + array("i", [2] * 24)
    sequence.forced = Forced(32, [2] * 8)
    roll(sequence)
    assert len(sequence.tokens) == 16
    assert sequence.forced is None


def test_what_is_refused(fake: SimpleNamespace) -> None:
    limits = fake.limits(max_model_len=15)
    with pytest.raises(RequestRefused, match="too short to roll"):
        length_limit(fake.request(PROMPT, rolling=True), limits)
    limits = fake.limits(max_model_len=16)
    assert length_limit(fake.request(PROMPT, rolling=True, max_tokens=1000), limits) == 16
    with pytest.raises(RequestRefused, match="a beam search ends with the context"):
        length_limit(fake.request(PROMPT, rolling=True, beams=2), limits)
    with pytest.raises(RequestRefused, match="17 tokens > 16 maximum"):
        length_limit(fake.request([1] * 16, rolling=True), limits)
