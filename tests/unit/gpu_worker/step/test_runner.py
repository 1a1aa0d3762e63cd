"""One step from its plan to its result: in which order, over what, and who else is told."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.errors import PlanError
from gpu_worker.step import limits
from gpu_worker.step.pending import Pending
from gpu_worker.step.runner import Runner
from proto.sampling_pb2 import TokenRules

PROMPT = [5, 17, 3, 88, 41, 9]
BLOCKS = [3, 1, 2, 8]


@pytest.fixture
def runner(make: SimpleNamespace, tiny: SimpleNamespace) -> Runner:
    runner: Runner = make.runner(tiny.directory)
    return runner


def first(make: SimpleNamespace, **fields: Any) -> Any:
    """A plan that computes the prompt in slot 0 and samples."""
    return make.plan(1, [(0, 0, 6, 1)], new_slots=[make.slot(0, PROMPT, BLOCKS, **fields)])


# --- steps ---


def test_a_step_may_begin_before_the_one_before_it_is_over(
    make: SimpleNamespace, tiny: SimpleNamespace, runner: Runner
) -> None:
    """It reads the token that was sampled before it where it lies, on the device."""
    begun = [runner.begin(first(make))]
    begun += [runner.begin(make.plan(step, [(0, step + 4, 1, 1)])) for step in range(2, 6)]
    tokens = [make.unpack(step.result().tokens)[0] for step in begun]
    assert tokens == make.expected(tiny.model, PROMPT, 5)


def test_after_a_reset_nothing_is_left(make: SimpleNamespace, tiny: SimpleNamespace, runner: Runner) -> None:
    runner.execute(first(make, sampling=make.greedy(presence_penalty=2.0)))
    runner.reset()
    with pytest.raises(PlanError, match="plan 2 came after plan 0"):
        runner.execute(make.plan(2, [(0, 6, 1, 1)]))
    runner.reset()
    with pytest.raises(PlanError, match="slot 0 holds no sequence"):
        runner.execute(make.plan(1, [(0, 6, 1, 1)]))
    runner.reset()
    assert make.unpack(runner.execute(first(make)).tokens) == make.expected(tiny.model, PROMPT, 1)


def count_logits(runner: Runner) -> list[int]:
    """Rows of logits that are computed from now on, at a time."""
    logits, counts = runner.model.logits, list[int]()

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        counts.append(len(hidden))
        return logits(hidden)

    runner.model.logits = counted  # type: ignore[method-assign]
    return counts


def test_many_drafts_are_verified_a_piece_at_a_time(
    make: SimpleNamespace, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many logits at once as all slots have without drafts: memory is measured with those."""
    rules = TokenRules(allowed_tokens=range(50), biased_tokens=[5, 7], biases=[3, -2])
    kinds: list[dict[str, Any]] = [
        {"sampling": make.greedy(logprobs=3, rules=rules)},
        {"sampling": make.greedy(temperature=1.0, seed=3)},
        {"sampling": make.greedy(), "candidates": 3},
        {"sampling": make.greedy(logprobs=1, rules=TokenRules(biased_tokens=[9], biases=[20]))},
    ]
    new = [make.slot(slot, PROMPT, [2 * slot, 2 * slot + 1], **kind) for slot, kind in enumerate(kinds)]
    rows = [(0, 0, 9, 4), (1, 0, 11, 6), (2, 0, 6, 1), (3, 0, 8, 3)]
    step = make.plan(1, rows, new_slots=new, draft_tokens=[4, 9, 2, 1, 5, 8, 3, 2, 7, 6])
    results = []
    for least, expected in ((64, [14]), (2, [4, 4, 4, 2])):
        monkeypatch.setattr(limits, "LEAST_LOGITS", least)
        runner = make.runner(tiny.directory, max_slots=4, block_size=16)
        counts = count_logits(runner)
        results.append(runner.execute(step))
        assert counts == expected
        assert not results[-1].errors
    whole, pieces = results
    for message in ("logprobs", "candidates"):
        of_whole, of_pieces = (getattr(result, message) for result in results)
        for field in of_whole.DESCRIPTOR.fields:
            if field.name not in ("logprobs", "top"):
                assert getattr(of_pieces, field.name) == getattr(of_whole, field.name) != b""
        assert of_pieces.top.tokens == of_whole.top.tokens
        floats = [np.frombuffer(each.top.logprobs, np.float32) for each in (of_whole, of_pieces)]
        np.testing.assert_allclose(*floats, atol=1e-5)
    assert pieces.tokens == whole.tokens


def test_a_plan_without_rows_computes_nothing(make: SimpleNamespace, runner: Runner) -> None:
    def computed(*_: Any) -> Any:
        raise AssertionError("something was computed")

    runner.forward = computed  # type: ignore[assignment]
    result = runner.execute(make.plan(1, new_slots=[make.slot(0, PROMPT, BLOCKS)]))
    assert (result.step, result.tokens, list(result.errors)) == (1, b"", [])


def test_logits_are_computed_for_tokens_that_sample_alone(make: SimpleNamespace, runner: Runner) -> None:
    asked: list[int] = []
    logits = runner.model.logits

    def watched(hidden: torch.Tensor) -> torch.Tensor:
        asked.append(len(hidden))
        return logits(hidden)

    runner.model.logits = watched  # type: ignore[method-assign]
    news = [make.slot(slot, PROMPT, [4 * slot, 4 * slot + 1]) for slot in range(3)]
    runner.execute(make.plan(1, [(0, 0, 6, 1), (1, 0, 4, 0), (2, 0, 3, 0)], new_slots=news))
    runner.execute(make.plan(2, [(1, 4, 1, 0), (2, 3, 2, 0)]))
    runner.execute(make.plan(3, [(0, 6, 1, 1), (1, 5, 1, 1), (2, 5, 1, 1)]))
    assert asked == [1, 3], "a step that samples nothing needs no logits"


def test_blocks_are_copied_before_they_are_read(
    make: SimpleNamespace, tiny: SimpleNamespace, runner: Runner
) -> None:
    runner.execute(first(make))
    moved = make.slot(1, PROMPT, [20, 21])
    copies = (BLOCKS[:2], [20, 21])
    result = runner.execute(make.plan(2, [(1, 5, 1, 1)], new_slots=[moved], copies=copies))
    assert make.unpack(result.tokens) == make.expected(tiny.model, PROMPT, 1)


@pytest.mark.parametrize("block", [-1, 64])
@pytest.mark.parametrize("side", ["sources", "targets"])
def test_a_copy_of_a_block_that_is_none(make: SimpleNamespace, runner: Runner, side: str, block: int) -> None:
    columns = {"sources": [1], "targets": [2], side: [block]}
    with pytest.raises(PlanError, match="not one of 64"):
        runner.execute(make.plan(1, copies=columns.values()))


# --- what a result tells ---


def failing_step(runner: Runner, make: SimpleNamespace) -> Pending:
    """A step under way whose only row, of slot 0, will turn out to have failed."""
    logits = runner.model.logits
    runner.model.logits = lambda hidden: logits(hidden) * torch.nan  # type: ignore[method-assign]
    failing = runner.begin(first(make))
    runner.model.logits = logits  # type: ignore[method-assign]
    return failing


def test_what_a_late_result_tells_is_not_held_against_the_next_sequence(
    make: SimpleNamespace, tiny: SimpleNamespace, runner: Runner
) -> None:
    """A slot whose sequence failed has been taken by another when the result comes."""
    failing = failing_step(runner, make)
    again = make.slot(0, PROMPT, [4, 5, 6, 7])
    following = runner.begin(make.plan(2, [(0, 0, 6, 1)], new_slots=[again], freed_slots=[0]))
    assert [error.row for error in failing.result().errors] == [0]
    runner.settle(failing)
    assert make.unpack(following.result().tokens) == make.expected(tiny.model, PROMPT, 1)
    assert not runner.execute(make.plan(3, [(0, 6, 1, 1)])).errors


def test_nor_is_what_is_told_while_nobody_holds_the_slot(
    make: SimpleNamespace, tiny: SimpleNamespace, runner: Runner
) -> None:
    """Its client has left in the meantime, say."""
    failing = failing_step(runner, make)
    runner.begin(make.plan(2, freed_slots=[0]))
    assert [error.row for error in failing.result().errors] == [0]
    runner.settle(failing)
    again = make.slot(0, PROMPT, [4, 5, 6, 7])
    result = runner.execute(make.plan(3, [(0, 0, 6, 1)], new_slots=[again]))
    assert make.unpack(result.tokens) == make.expected(tiny.model, PROMPT, 1)


def test_a_sequence_that_failed_and_still_holds_its_slot_fails_on(
    make: SimpleNamespace, runner: Runner
) -> None:
    failing = failing_step(runner, make)
    assert failing.result().errors
    runner.settle(failing)
    result = runner.execute(make.plan(2, [(0, 6, 1, 1)]))
    assert [(error.row, error.message) for error in result.errors] == [
        (0, "the model's logits are not finite")
    ]


# --- other ranks ---


class Told:
    """Other ranks that only note what they are told."""

    def __init__(self) -> None:
        self.words: list[Any] = []

    def begin(self, plan: Any) -> None:
        self.words.append(plan.step)

    def fail(self, slots: Any) -> None:
        self.words.append(("fail", list(slots)))

    def reset(self) -> None:
        self.words.append("reset")

    def close(self) -> None:
        self.words.append("close")

    def failed(self, error: Exception) -> None:
        self.words.append(error)


def test_other_ranks_do_the_same_in_the_same_order(make: SimpleNamespace, runner: Runner) -> None:
    """They refuse what this rank refuses, and hear of failures only if there are any."""
    told = runner.followers = Told()
    failing = failing_step(runner, make)
    failing.result()
    runner.settle(failing)
    runner.execute(make.plan(2, freed_slots=[0]))
    with pytest.raises(PlanError, match="plan 9 came after plan 2"):
        runner.execute(make.plan(9))
    runner.reset()
    runner.close()
    assert told.words == [1, ("fail", [0]), 2, 9, "reset", "close"]
