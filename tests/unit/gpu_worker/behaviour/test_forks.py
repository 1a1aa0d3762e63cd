"""Sequences that fork share blocks, copy the one that is partly filled, and go on by themselves."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_worker.errors import PlanError

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]


def step(
    make: SimpleNamespace, runner: Any, number: int, rows: list[tuple[int, int, int, int]], **fields: Any
):
    return runner.execute(make.plan(number, rows, **fields))


def copies(sources: list[int], targets: list[int]) -> dict[str, Any]:
    return {"copies": (sources, targets)}


def forked(
    make: SimpleNamespace, slot: int, tokens: list[int], blocks: list[int], begun: int, **changes: Any
):
    fields = {"prompt_length": len(PROMPT), "forked_from": 0, "forked_tokens": begun, **changes}
    return make.slot(slot, tokens, blocks, **fields)


@pytest.fixture
def runner(make: SimpleNamespace, tiny: SimpleNamespace) -> Any:
    """It has computed the prompt in slot 0, in blocks 5, 6 and 7."""
    runner = make.runner(tiny.directory)
    result = step(make, runner, 1, [(0, 0, 10, 1)], new_slots=[make.slot(0, PROMPT, [5, 6, 7])])
    assert not result.errors
    return runner


def test_a_fork_goes_on_as_the_sequence_itself_does(
    make: SimpleNamespace, tiny: SimpleNamespace, runner: Any
) -> None:
    expected = make.expected(tiny.model, PROMPT, 6)
    child = forked(make, 1, PROMPT[9:], [9], 9)
    first = step(make, runner, 2, [(0, 10, 1, 1), (1, 9, 1, 1)], new_slots=[child], **copies([7], [9]))
    found = [make.unpack(first.tokens)]
    for number in range(3, 6):
        rows = [(0, 8 + number, 1, 1), (1, 7 + number, 1, 1)]
        more = {"table_appends": ([0], [20])} if number == 4 else {}
        more = {"table_appends": ([1], [21])} if number == 5 else more
        result = step(make, runner, number, rows, **more)
        assert not result.errors
        found.append(make.unpack(result.tokens))
    assert [tokens[0] for tokens in found] == expected[1:5]
    assert [tokens[1] for tokens in found] == expected[:4]


def test_a_fork_with_another_end_does_not_touch_what_it_came_from(
    make: SimpleNamespace, tiny: SimpleNamespace, runner: Any
) -> None:
    other = [*PROMPT[:9], 41, 42]
    child = forked(make, 1, other[9:], [9], 9)
    result = step(make, runner, 2, [(0, 10, 1, 1), (1, 9, 2, 1)], new_slots=[child], **copies([7], [9]))
    again, one = make.unpack(result.tokens)
    assert again == make.expected(tiny.model, PROMPT, 2)[1]
    assert one == make.expected(tiny.model, other, 1)[0]


def test_a_fork_on_the_edge_of_a_block_needs_no_copy(
    make: SimpleNamespace, tiny: SimpleNamespace, runner: Any
) -> None:
    child = forked(make, 1, PROMPT[8:], [9], 8)
    result = step(make, runner, 2, [(1, 8, 2, 1)], new_slots=[child])
    assert make.unpack(result.tokens) == make.expected(tiny.model, PROMPT, 1)


def test_the_seed_and_the_index_of_a_fork_are_its_own(make: SimpleNamespace, runner: Any) -> None:
    children = [
        forked(make, slot, PROMPT[9:], [9 + slot], 9, sampling=make.sampled(seed=5), sequence_index=slot)
        for slot in range(1, 7)
    ]
    rows = [(slot, 9, 1, 1) for slot in range(1, 7)]
    result = step(make, runner, 2, rows, new_slots=children, **copies([7] * 6, list(range(10, 16))))
    assert len(set(make.unpack(result.tokens))) > 1


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"forked_from": 3}, "slot 3"),
        ({"forked_from": 1}, "slot 1"),
        ({"forked_from": 99}, "slot 99"),
        ({"begun": 12}, "12 tokens of a sequence of 11"),
        ({"begun": 70}, "71 tokens"),
    ],
)
def test_a_fork_of_what_is_not_there_fails_alone(
    make: SimpleNamespace, runner: Any, changes: dict[str, int], what: str
) -> None:
    child = forked(make, 1, PROMPT[9:], [9], **{"begun": 9, **changes})
    result = step(make, runner, 2, [(0, 10, 1, 1), (1, 9, 1, 1)], new_slots=[child])
    assert [error.row for error in result.errors] == [1]
    assert what in result.errors[0].message
    assert make.unpack(result.tokens)[0] >= 0


def test_a_fork_of_a_sequence_that_failed_fails_too(make: SimpleNamespace, runner: Any) -> None:
    bad = step(make, runner, 2, [(0, 50, 1, 1)])
    assert bad.errors
    result = step(make, runner, 3, [(1, 9, 1, 1)], new_slots=[forked(make, 1, PROMPT[9:], [9], 9)])
    assert result.errors[0].message == bad.errors[0].message


@pytest.mark.parametrize(("sources", "targets"), [([7], [64]), ([-1], [9]), ([7, 6], [9])])
def test_copies_that_cannot_be_are_refused(
    make: SimpleNamespace, runner: Any, sources: list[int], targets: list[int]
) -> None:
    with pytest.raises(PlanError, match="cop"):
        step(make, runner, 2, [(0, 10, 1, 1)], **copies(sources, targets))
