"""The state machine: the legal transitions and no others."""

import itertools
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core.errors import IllegalTransition
from scheduler_svc.core.request import Finish, SoFar
from scheduler_svc.core.sequence import LEGAL, Sequence, SequenceGroup, State


@pytest.fixture
def sequence(fake: SimpleNamespace) -> Sequence:
    group = SequenceGroup(fake.request([1, 2], stop_token_ids=frozenset({2, 5})), arrival=1)
    group.limit = 5
    return group.sequences[0]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_only_legal_transitions(sequence: Sequence, before: State, after: State) -> None:
    sequence.state = before
    if after in LEGAL[before]:
        sequence.move(after)
        assert sequence.state is after
    else:
        with pytest.raises(IllegalTransition, match=f"{before.value} to {after.value}"):
            sequence.move(after)
        assert sequence.state is before


def test_every_state_can_end_and_the_end_is_final() -> None:
    assert not LEGAL[State.DONE]
    assert all(State.DONE in LEGAL[state] for state in State if state is not State.DONE)


@pytest.mark.parametrize(
    ("output", "finish"),
    [
        ([], Finish.NOT_FINISHED),  # a stop token that ends the prompt ends nothing
        ([1], Finish.NOT_FINISHED),
        ([5], Finish.STOP),
        ([5, 1], Finish.NOT_FINISHED),
        ([1, 1, 1], Finish.LENGTH),
        ([1, 1, 5], Finish.STOP),
    ],
)
def test_what_ends_a_sequence(sequence: Sequence, output: list[int], finish: Finish) -> None:
    sequence.tokens = sequence.tokens + array("i", output)
    assert sequence.ending() is finish


def test_a_group_begins_with_what_was_delivered_before(fake: SimpleNamespace) -> None:
    resumed = (SoFar(2, array("i", [7, 8]), False), SoFar(0, array("i", [9]), True))
    group = SequenceGroup(fake.request([1, 2], n=3, resumed=resumed), arrival=1)
    assert [list(each.tokens) for each in group.sequences] == [[1, 2, 9], [1, 2], [1, 2, 7, 8]]
    assert [each.index for each in group.alive()] == [1, 2]
    assert group.unfinished == 2


def test_samples_that_wait_share_one_prompt(fake: SimpleNamespace) -> None:
    """A hundred copies of a long prompt, for each request that waits, are more memory than a process has."""
    group = SequenceGroup(fake.request([1, 2], n=128), arrival=1)
    assert all(each.tokens is group.request.prompt for each in group.sequences)


@pytest.mark.parametrize("fields", [{"n": 3}, {"beams": 3}, {"rolling": True, "max_tokens": 90}])
def test_a_prompt_stays_what_it_is(bench: Callable[..., Any], fields: dict[str, Any]) -> None:
    one = bench(num_blocks=30, max_slots=3)
    prompt = list(range(9))
    groups = [one.arrive(prompt, **{"max_tokens": 20, **fields}) for _ in range(3)]
    one.run()
    assert [group.request.prompt.tolist() for group in groups] == [prompt] * 3
