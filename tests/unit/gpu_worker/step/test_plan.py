"""Plans that contradict themselves or the batch, rows with a fault of their own, and slots' lives."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_worker.errors import PlanError
from proto.worker_pb2 import Rows, StepPlan, TableAppends

PROMPT = [5, 17, 3, 88, 41, 9]


@pytest.fixture
def runner(make, tiny):
    """Slot 2 holds a sequence of six tokens and two blocks of four, computed up to its last token."""
    runner = make.runner(tiny.directory, num_blocks=16, max_model_len=32, max_step_tokens=16)
    runner.execute(make.plan(1, [(2, 0, 5, 0)], new_slots=[make.slot(2, PROMPT, [7, 1])]))
    return runner


WHOLE = {
    "a step number again": lambda make: make.plan(1),
    "a step number skipped": lambda make: make.plan(3),
    "half a number": lambda make: StepPlan(step=2, rows=Rows(slots=b"abc")),
    "half a block": lambda make: StepPlan(step=2, table_appends=TableAppends(blocks=b"abcdef")),
    "columns of rows differ": lambda make: StepPlan(step=2, rows=Rows(slots=make.pack([2]))),
    "blocks for nobody": lambda make: make.plan(2, table_appends=([], [3])),
    "blocks for an empty slot": lambda make: make.plan(2, table_appends=([3], [3])),
    "row of an empty slot": lambda make: make.plan(2, [(0, 0, 1, 0)]),
    "two rows of one slot": lambda make: make.plan(2, [(2, 0, 1, 0), (2, 1, 1, 0)]),
    "a row of nothing": lambda make: make.plan(2, [(2, 5, 0, 1)]),
    "samples twice": lambda make: make.plan(2, [(2, 5, 1, 2)]),
    "too many tokens": lambda make: make.plan(2, [(2, 0, 17, 0)]),
    "counts that overflow": lambda make: make.plan(
        2, [(2, 0, 2**31 - 1, 0), (0, 0, 2**31 - 1, 0)], new_slots=[make.slot(0, [1], [])]
    ),
    "a slot that is held": lambda make: make.plan(2, new_slots=[make.slot(2, [1], [])]),
    "a slot beyond the last": lambda make: make.plan(2, new_slots=[make.slot(8, [1], [])]),
    "a slot given twice": lambda make: make.plan(2, new_slots=[make.slot(1, [1], []), make.slot(1, [1], [])]),
    "freeing what is free": lambda make: make.plan(2, freed_slots=[1]),
    "freeing twice": lambda make: make.plan(2, freed_slots=[2, 2]),
    "tokens that are none": lambda make: make.plan(2, new_slots=[type(make.slot(0, [1], []))(tokens=b"ab")]),
}


@pytest.mark.parametrize("bad", WHOLE.values(), ids=WHOLE.keys())
def test_a_plan_that_cannot_be_applied(make, runner, bad) -> None:
    with pytest.raises(PlanError) as caught:
        runner.execute(bad(make))
    assert "\n" not in str(caught.value)
    runner.reset()
    fresh = make.plan(1, [(2, 0, 6, 1)], new_slots=[make.slot(2, PROMPT, [7, 1])])
    assert make.unpack(runner.execute(fresh).tokens) != [-1]


ROWS = {
    "no block at the position": ({"block_ids": [0]}, (4, 2, 1), "has no block"),
    "a block out of range": ({"block_ids": [0, 16]}, (0, 6, 1), "block 16 of 16"),
    "a negative block": ({"block_ids": [-1, 3]}, (0, 6, 1), "block -1 of 16"),
    "too many blocks": ({"block_ids": range(9)}, (0, 6, 1), "one too many"),
    "beyond the known tokens": ({}, (6, 1, 1), "6 known tokens"),
    "across the known tokens": ({}, (4, 3, 1), "6 known tokens"),
    "before the first token": ({}, (-1, 2, 0), "positions -1 to 0"),
    "a start that overflows": ({}, (2**31 - 1, 1, 0), "known tokens"),
    "samples what is known": ({}, (0, 3, 1), "a token for position 3"),
    "a token beyond the vocabulary": ({"tokens": [1, 97, 2]}, (0, 3, 1), "token 97"),
    "a negative token": ({"tokens": [1, -1, 2]}, (0, 3, 1), "token -1"),
    "no tokens": ({"tokens": []}, (0, 1, 0), "0 tokens"),
    "too many tokens": ({"tokens": [1] * 33}, (0, 1, 0), "33 tokens"),
    "no prompt": ({"prompt_length": 0}, (0, 6, 1), "a prompt of 0"),
    "more prompt than tokens": ({"prompt_length": 7}, (0, 6, 1), "a prompt of 7"),
    "negative temperature": ({"temperature": -1.0}, (0, 6, 1), "temperature"),
    "top_p of nothing": ({"top_p": 0.0}, (0, 6, 1), "top_p"),
    "a penalty that is no number": ({"presence_penalty": float("nan")}, (0, 6, 1), "presence_penalty"),
    "too many alternatives": ({"logprobs": 2**31}, (0, 6, 1), "logprobs"),
}
SLOT_FIELDS = ("tokens", "block_ids", "prompt_length")


def bad_slot(make, changes):
    sampling = make.sampled(**{key: value for key, value in changes.items() if key not in SLOT_FIELDS})
    fields = {"prompt_length": changes["prompt_length"]} if "prompt_length" in changes else {}
    return make.slot(
        5, changes.get("tokens", PROMPT), changes.get("block_ids", [4, 5]), sampling=sampling, **fields
    )


@pytest.mark.parametrize(("changes", "row", "message"), ROWS.values(), ids=ROWS.keys())
def test_a_row_with_a_fault_fails_alone(make, runner, tiny, changes, row, message) -> None:
    new = bad_slot(make, changes)
    result = runner.execute(make.plan(2, [(5, *row), (2, 5, 1, 1)], new_slots=[new]))
    (token,) = make.expected(tiny.model, PROMPT, 1)
    assert make.unpack(result.tokens) == ([-1, token] if row[2] else [token])
    (error,) = result.errors
    assert error.row == 0
    assert message in error.message
    # Its slot is freed and used again like any other.
    good = make.slot(5, PROMPT, [8, 9])
    result = runner.execute(make.plan(3, [(5, 0, 6, 1)], freed_slots=[5], new_slots=[good]))
    assert (make.unpack(result.tokens), list(result.errors)) == ([token], [])


@pytest.mark.parametrize("slot", [8, -1, 2**31 - 1])
def test_a_row_of_no_slot_fails_alone(make, runner, tiny, slot) -> None:
    result = runner.execute(make.plan(2, [(slot, 0, 1, 1), (2, 5, 1, 1)]))
    assert make.unpack(result.tokens) == [-1, *make.expected(tiny.model, PROMPT, 1)]
    assert [(error.row, error.message) for error in result.errors] == [(0, f"slot {slot} of 8")]
    assert not runner.execute(make.plan(3, [(2, 6, 1, 1)])).errors


def test_a_slot_that_has_failed_fails_until_it_is_freed(make, runner, tiny) -> None:
    """Else the chunk after one that failed would be computed upon pages that nobody has written."""
    new = make.slot(5, PROMPT, [4])
    first = runner.execute(make.plan(2, [(5, 0, 5, 0)], new_slots=[new]))
    under_way = runner.execute(make.plan(3, [(5, 5, 1, 1)], table_appends=([5], [6])))
    assert [error.message for error in first.errors] == [error.message for error in under_way.errors]
    assert make.unpack(under_way.tokens) == [-1]
    again = make.slot(5, PROMPT, [4, 6])
    result = runner.execute(make.plan(4, [(5, 0, 6, 1)], freed_slots=[5], new_slots=[again]))
    assert make.unpack(result.tokens) == make.expected(tiny.model, PROMPT, 1)


def test_a_sequence_ends_at_the_longest_one_inside_a_block(make, tiny) -> None:
    runner = make.runner(tiny.directory, block_size=16, max_model_len=30)
    prompt = list(range(1, 31))
    new = make.slot(0, prompt, [3, 1])
    result = runner.execute(make.plan(1, [(0, 0, 30, 1)], new_slots=[new]))
    assert make.unpack(result.tokens) == make.expected(tiny.model, prompt, 1)
    result = runner.execute(make.plan(2, [(0, 30, 1, 1)]))
    assert make.unpack(result.tokens) == [-1]
    assert result.errors[0].message == "position 30 of a sequence of at most 30 tokens"


def test_blocks_that_come_later_are_checked_too(make, runner) -> None:
    result = runner.execute(make.plan(2, [(2, 5, 1, 1)], table_appends=([2], [99])))
    assert make.unpack(result.tokens) == [-1]
    assert "block 99 of 16" in result.errors[0].message


def test_blocks_of_several_slots_keep_their_order(make, runner, tiny) -> None:
    runner.execute(
        make.plan(
            2,
            new_slots=[make.slot(0, PROMPT + PROMPT, [3]), make.slot(1, PROMPT[:2], [])],
            table_appends=([0, 1, 0, 2], [12, 2, 4, 11]),
        )
    )
    tables = runner.batch.tables.blocks
    assert [tables[slot, :3].tolist() for slot in (0, 2)] == [[3, 12, 4], [7, 1, 11]]
    result = runner.execute(make.plan(3, [(0, 0, 12, 1), (2, 5, 1, 1), (1, 0, 2, 1)]))
    expected = [make.expected(tiny.model, tokens, 1)[0] for tokens in (PROMPT + PROMPT, PROMPT, PROMPT[:2])]
    assert make.unpack(result.tokens) == expected


def test_a_plan_without_rows_hands_back_slots(make, runner) -> None:
    result = runner.execute(make.plan(2, freed_slots=[2]))
    assert (result.step, result.tokens, list(result.errors)) == (2, b"", [])
    with pytest.raises(PlanError, match="slot 2 holds no sequence"):
        runner.execute(make.plan(3, [(2, 5, 1, 1)]))


def test_a_row_whose_logits_are_not_finite_fails_alone(make, tiny, tmp_path) -> None:
    shutil.copytree(tiny.directory, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.embed_tokens.weight"][96] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    runner = make.runner(tmp_path, num_blocks=16, max_model_len=32, max_step_tokens=16)
    runner.execute(make.plan(1, [(2, 0, 5, 0)], new_slots=[make.slot(2, PROMPT, [7, 1])]))
    new = make.slot(0, [1, 96], [3], sampling=make.sampled(logprobs=2))
    healthy = make.slot(1, [1, 9], [4], sampling=make.greedy(logprobs=1))
    result = runner.execute(
        make.plan(2, [(0, 0, 2, 1), (2, 5, 1, 1), (1, 0, 2, 1)], new_slots=[new, healthy])
    )
    expected = [make.expected(tiny.model, tokens, 1)[0] for tokens in (PROMPT, [1, 9])]
    assert make.unpack(result.tokens) == [-1, *expected]
    assert [(error.row, error.message) for error in result.errors] == [
        (0, "the model's logits are not finite")
    ]
    assert make.unpack(result.logprobs.entries) == [2]
    # A plan under way builds on the token that never was; and NaN left in pages reaches nobody.
    result = runner.execute(make.plan(3, [(0, 2, 1, 1)]))
    assert make.unpack(result.tokens) == [-1]
    again = make.slot(0, PROMPT, [3, 5])
    result = runner.execute(make.plan(4, [(0, 0, 6, 1)], freed_slots=[0], new_slots=[again]))
    assert make.unpack(result.tokens) == expected[:1]


def test_logprobs_in_a_result(make, runner, tiny) -> None:
    news = [
        make.slot(slot, PROMPT, [slot * 2 + 2, slot * 2 + 3], sampling=make.greedy(**wanted))
        for slot, wanted in ((0, {"logprobs": 3}), (1, {"logprobs": 0}), (3, {}), (4, {"logprobs": 1}))
    ]
    runner.execute(make.plan(2, [(2, 5, 1, 1)], new_slots=news))
    rows = [(0, 0, 2, 0), (4, 0, 5, 0), (1, 0, 6, 1)]
    result = runner.execute(make.plan(3, rows))
    assert make.unpack(result.logprobs.entries) == [0]
    rows = [(0, 2, 4, 1), (3, 0, 6, 1), (4, 5, 1, 1), (2, 6, 1, 1)]  # a decode among chunks
    result = runner.execute(make.plan(4, rows))
    with torch.inference_mode():
        logprobs = tiny.model(torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)
    best = logprobs.topk(3)
    assert make.unpack(result.logprobs.entries) == [0, 2]
    assert make.unpack(result.logprobs.top_counts) == [3, 1]
    assert make.unpack(result.logprobs.top.tokens) == [*best.indices.tolist(), best.indices[0].item()]
    np.testing.assert_allclose(make.unpack(result.logprobs.logprobs, "<f4"), [best.values[0]] * 2, atol=1e-5)
    np.testing.assert_allclose(
        make.unpack(result.logprobs.top.logprobs, "<f4"), [*best.values, best.values[0]], atol=1e-5
    )


def test_a_sequence_goes_on_elsewhere_with_the_same_draws(make, tiny) -> None:
    params = make.sampled(seed=77, temperature=1.5, top_p=0.95, presence_penalty=0.5)
    first = make.Driver(make.runner(tiny.directory))
    tokens = first.generate(first.admit(0, PROMPT, sampling=params), 12)
    second = make.Driver(make.runner(tiny.directory, block_size=8), seed=5)
    resumed = second.admit(6, PROMPT + tokens[:5], sampling=params, prompt_length=len(PROMPT))
    other = second.admit(1, PROMPT, sampling=make.sampled(seed=3))
    second.step((other, 6), (resumed, 11))
    while len(resumed.tokens) < len(PROMPT) + 12:
        second.step((other, 1), (resumed, 1))
    assert resumed.tokens[len(PROMPT) :] == tokens
