"""Drafts change how many tokens a step gives, never which: greedy or drawn, good or bad."""

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_worker.errors import PlanError

PROMPT = [5, 17, 3, 88, 41, 41, 9, 60, 2, 73, 28]
COUNT = 30
VOCAB = 97


def plain(make: SimpleNamespace, directory: Any, count: int = COUNT, **changes: Any) -> list[int]:
    """What comes without drafts."""
    driver = make.Driver(make.runner(directory))
    tokens: list[int] = driver.generate(driver.admit(1, PROMPT, **changes), count)
    return tokens


def drafted(
    make: SimpleNamespace, directory: Any, truth: list[int], right: float, seed: int, **changes: Any
) -> tuple[list[int], int]:
    """The same tokens with drafts, each right with probability `right`; and how many steps it took."""
    driver, chance = make.Driver(make.runner(directory, block_size=2), seed=seed), Random(seed)
    sequence = driver.admit(1, PROMPT, **changes)
    steps = 0
    while (gained := len(sequence.tokens) - len(PROMPT)) < len(truth):
        length = min(chance.randrange(6), len(truth) - gained - 1)
        drafts = [
            token if chance.random() < right else chance.randrange(VOCAB)
            for token in truth[gained : gained + length]
        ]
        driver.step((sequence, len(sequence.tokens) - sequence.computed), drafts={1: drafts})
        steps += 1
    return sequence.tokens[len(PROMPT) :], steps


SAMPLING = {
    "greedy": {},
    "penalties": {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.3},
    "drawn": {"temperature": 1.0, "seed": 11},
    "drawn with all": {
        "temperature": 0.9,
        "top_p": 0.9,
        "top_k": 40,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "seed": 3,
    },
}


@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("params", SAMPLING.values(), ids=SAMPLING.keys())
def test_tokens_are_the_same_with_drafts(make, tiny, params, right) -> None:
    sampling = make.greedy(**params)
    truth = plain(make, tiny.directory, sampling=sampling, sequence_index=2)
    tokens, steps = drafted(make, tiny.directory, truth, right, seed=4, sampling=sampling, sequence_index=2)
    assert tokens == truth
    assert len(set(truth)) > 4, "a model that repeats itself shows little"
    assert steps < COUNT * 0.6 if right == 1.0 else steps > COUNT * 0.4


def test_rows_with_and_without_drafts_in_one_step(make, tiny) -> None:
    """Prefill chunks, plain decodes and verified rows, in an order that is not the batch's."""
    driver = make.Driver(make.runner(tiny.directory))
    prompts = [PROMPT, PROMPT[1:], PROMPT[2:]]
    truths = [make.expected(tiny.model, prompt, 20) for prompt in prompts]
    first, second, third = (driver.admit(slot, prompt) for slot, prompt in enumerate(prompts))
    driver.step((second, 10), (first, 11))
    driver.step((second, 1), (third, 5), (first, 1), drafts={1: truths[1][1:4], 0: [truths[0][1], 96]})
    assert (len(first.tokens) - 11, len(second.tokens) - 10) == (3, 5)
    driver.step((first, 1), (third, 4), (second, 1), drafts={2: truths[2][:2]})
    assert len(third.tokens) - 9 == 3
    driver.step((third, 1), (second, 1), (first, 1), drafts={2: [96, 96], 1: truths[1][6:8]})
    for sequence, prompt, truth in zip((first, second, third), prompts, truths, strict=True):
        output = sequence.tokens[len(prompt) :]
        assert output == truth[: len(output)]
    assert (len(first.tokens) - 11, len(second.tokens) - 10, len(third.tokens) - 9) == (5, 9, 4)


def test_log_probabilities_come_with_every_token_that_is_kept(make, tiny) -> None:
    sampling = make.greedy(logprobs=2)
    driver = make.Driver(make.runner(tiny.directory))
    sequence, other = driver.admit(1, PROMPT, sampling=sampling), driver.admit(2, PROMPT)
    truth = make.expected(tiny.model, PROMPT, 4)
    results = [driver.step((sequence, 11), (other, 11)), *(driver.step((sequence, 1)) for _ in range(3))]
    alone = [make.unpack(result.logprobs.logprobs, "<f4")[0] for result in results]

    driver = make.Driver(make.runner(tiny.directory))
    sequence, other = driver.admit(1, PROMPT, sampling=sampling), driver.admit(2, PROMPT)
    driver.step((sequence, 11), (other, 11))
    drafts = {1: [truth[1], truth[2], (truth[3] + 1) % VOCAB, 0], 2: [(truth[1] + 1) % VOCAB]}
    result = driver.step((other, 1), (sequence, 1), drafts=drafts)
    assert make.unpack(result.tokens) == [truth[1], -1, *truth[1:], -1, -1]
    assert make.unpack(result.logprobs.entries) == [2, 3, 4]
    assert make.unpack(result.logprobs.logprobs, "<f4") == pytest.approx(alone[1:], abs=1e-4)
    assert len(make.unpack(result.logprobs.top.tokens)) == 6


def test_a_given_draft_holds_as_often_as_the_model_would_say_it(make, tiny) -> None:
    """Over many seeds: what comes after one and the same draft is distributed as without drafts."""
    draws, slots = 1200, 8
    counts = [Counter(), Counter()]  # type: list[Counter[tuple[int, int]]]
    sampling = [make.sampled(temperature=0.7, top_k=3, seed=seed) for seed in range(2 * draws)]
    common = Counter(
        plain(make, tiny.directory, count=1, sampling=sampling[seed])[0] for seed in range(30)
    ).most_common(1)[0][0]
    runner = make.runner(tiny.directory)
    for way in (0, 1):
        driver = make.Driver(runner)
        runner.reset()
        for begin in range(0, draws, slots):
            # Other seeds for the other way: equal tokens under equal seeds would show nothing here.
            sequences = [
                driver.admit(slot, PROMPT, sampling=sampling[2 * (begin + slot) + way])
                for slot in range(slots)
            ]
            if way:
                drafts = {slot: [common] for slot in range(slots)}
                driver.step(*((each, 11) for each in sequences[:4]), drafts=drafts)
                driver.step(*((each, 11) for each in sequences[4:]), drafts=drafts)
            else:
                driver.step(*((each, 11) for each in sequences[:4]))
                driver.step(*((each, 11) for each in sequences[4:]))
            rest = [each for each in sequences if len(each.tokens) < 13]
            if rest:
                driver.step(*((each, 1) for each in rest))
            counts[way].update((each.tokens[11], each.tokens[12]) for each in sequences)
            for each in sequences:
                driver.release(each)
    cells = [cell for cell in counts[0] | counts[1] if counts[0][cell] + counts[1][cell] >= 20]
    assert len(cells) >= 5
    chi = sum(
        (counts[0][cell] - counts[1][cell]) ** 2 / (counts[0][cell] + counts[1][cell]) for cell in cells
    )
    # Two samples of one distribution: at most 9 cells, 8 degrees of freedom; p = 0.001 at 26.1.
    assert chi < 26.1


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"rows": [(0, 11, 2, 3)], "draft_tokens": [1, 2]}, "samples more tokens"),
        ({"rows": [(0, 11, 3, 3)], "draft_tokens": [1]}, "draft_tokens"),
        ({"rows": [(0, 11, 2, 2)], "draft_tokens": [97]}, "vocabulary"),
        ({"rows": [(0, 11, 2, 2)], "draft_tokens": [-1]}, "draft model"),
        ({"rows": [(0, 11, 1, 1)], "draft_tokens": [1]}, "draft_tokens"),
        ({"rows": [(0, 11, 1, 1)], "table_cuts": ([0], [9])}, "table_cuts.lengths"),
        ({"rows": [(0, 11, 1, 1)], "table_cuts": ([5], [0])}, "table_cuts.slots"),
        ({"rows": [(0, 11, 1, 1)], "table_cuts": ([0], [])}, "table_cuts: .*1 slots, 0 lengths"),
    ],
)
def test_what_contradicts_itself_is_refused(make, tiny, fields, what) -> None:
    runner = make.runner(tiny.directory)
    runner.execute(make.plan(1, [(0, 0, 11, 1)], new_slots=[make.slot(0, PROMPT, [5, 6, 7, 8])]))
    with pytest.raises(PlanError, match=what):
        runner.execute(make.plan(2, **fields))


@pytest.mark.parametrize(
    ("row", "what"),
    [((0, 9, 3, 3), "known"), ((0, 11, 4, 4), "no block"), ((0, 12, 2, 2), "known")],
)
def test_a_row_whose_drafts_do_not_fit_fails_alone(make, tiny, row, what) -> None:
    runner = make.runner(tiny.directory)
    first = runner.execute(
        make.plan(
            1,
            [(0, 0, 11, 1), (1, 0, 11, 1)],
            new_slots=[make.slot(0, PROMPT, [5, 6, 7]), make.slot(1, PROMPT, [8, 9, 10])],
        )
    )
    second = make.expected(tiny.model, PROMPT, 2)[1]
    result = runner.execute(make.plan(2, [row, (1, 11, 1, 1)], draft_tokens=[1] * (row[3] - 1)))
    assert make.unpack(first.tokens)[0] == make.expected(tiny.model, PROMPT, 1)[0]
    assert [error.row for error in result.errors] == [0]
    assert what in result.errors[0].message
    assert make.unpack(result.tokens) == [-1] * row[3] + [second]
