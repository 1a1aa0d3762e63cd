"""Log probabilities of prompts are transformers' log softmax at every position, however a prompt is cut."""

from array import array
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_worker.errors import PlanError
from gpu_worker.step.result import NOT_FINITE
from proto import arrays
from proto.sampling import greedy
from proto.scheduler_pb2 import PromptScores
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import SequenceGroup
from tests.support.closed_loop import ClosedLoop
from tests.unit.gpu_worker.behaviour.test_families import random_model

LENGTHS = [1, 2, 3, 16, 17, 40]
WANTED = greedy(prompt_logprobs=3)


def text(length: int) -> list[int]:
    return [(7 * place * place + 3 * place + 5) % 97 for place in range(length)]


def request(tokens: Iterable[int], alternatives: int | None = None, **fields: Any) -> Request:
    """`alternatives`: to each token of the prompt; None: no log probabilities of it."""
    scores = alternatives is not None
    sampling = greedy(prompt_logprobs=alternatives) if scores else greedy()
    return Request("r", array("i", tokens), max_tokens=2, sampling=sampling, scores_prompt=scores, **fields)


def run(loop: ClosedLoop, *groups: SequenceGroup) -> None:
    while any(group.unfinished for group in groups):
        loop.step()


def check(found: list[PromptScores], model: Any, tokens: list[int], alternatives: int) -> None:
    """Every token but the first, once and in order."""
    with torch.inference_mode():
        logprobs = model(torch.tensor([tokens])).logits[0, :-1].float().log_softmax(dim=-1)
    chosen = logprobs.gather(1, torch.tensor(tokens[1:], dtype=torch.int64)[:, None])
    top = logprobs.topk(alternatives, dim=-1)
    near = {"atol": 1e-3, "rtol": 0.0}
    assert numbers(found, "ranks", arrays.INT32) == ((logprobs > chosen).sum(1) + 1).tolist()
    assert numbers(found, "top_tokens", arrays.INT32) == top.indices.flatten().tolist()
    for name, expected in (("logprobs", chosen), ("top_logprobs", top.values)):
        of = numbers(found, name, arrays.FLOAT32)
        torch.testing.assert_close(Tensor(of), expected.flatten(), **near)


def numbers(found: list[PromptScores], name: str, dtype: Any) -> list[Any]:
    return [each for scores in found for each in arrays.unpack(getattr(scores, name), dtype)]


@pytest.mark.parametrize("budget", [5, 64])
def test_prompts_of_all_lengths_beside_answers(
    make: SimpleNamespace, tiny: SimpleNamespace, budget: int
) -> None:
    """Cut into chunks, with other numbers of alternatives, and with what is cached of them already."""
    loop = ClosedLoop(make.runner(tiny.directory, max_step_tokens=budget, max_slots=4))
    loop.generate(request(text(40)), 2)
    answers = [loop.ask(request([seed, 9, 4])) for seed in range(2)]
    groups = [loop.ask(request(text(length), length % 5)) for length in LENGTHS]
    run(loop, *groups, *answers)
    for length, group in zip(LENGTHS, groups, strict=True):
        check(loop.scored[group], tiny.model, text(length), length % 5)
    assert not loop.scored.keys() & set(answers)


def test_several_samples_share_one_prompt(make: SimpleNamespace, tiny: SimpleNamespace) -> None:
    loop = ClosedLoop(make.runner(tiny.directory, max_step_tokens=7))
    group = loop.ask(request(text(18), 2, n=3))
    run(loop, group)
    check(loop.scored[group], tiny.model, text(18), 2)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("Gemma2ForCausalLM", {"head_dim": 16, "final_logit_softcapping": 5.0}),
        ("CohereForCausalLM", {"logit_scale": 0.25}),
    ],
)
def test_families_that_change_their_logits(
    make: SimpleNamespace, tmp_path: Path, architecture: str, changes: dict[str, Any]
) -> None:
    model = random_model(architecture, changes)
    model.save_pretrained(tmp_path)
    loop = ClosedLoop(make.runner(tmp_path, max_step_tokens=9))
    group = loop.ask(request(text(20), 4))
    run(loop, group)
    check(loop.scored[group], model, text(20), 4)


def test_a_row_reports_what_the_plan_names_and_no_more(make: SimpleNamespace, tiny: SimpleNamespace) -> None:
    runner = make.runner(tiny.directory)
    slots = [make.slot(slot, text(8), [2 * slot, 2 * slot + 1], sampling=WANTED) for slot in range(2)]
    rows = [(0, 0, 8, 1), (1, 0, 6, 0)]
    result = runner.execute(make.plan(1, rows, new_slots=slots, prompt_rows=([0, 1], [5, 1], [3, 6])))
    assert make.unpack(result.prompt_logprobs.rows.rows) == [0, 1]
    assert make.unpack(result.prompt_logprobs.rows.counts) == [3, 6]
    assert make.unpack(result.prompt_logprobs.rows.alternatives) == [3, 3]
    ranks = make.unpack(result.prompt_logprobs.ranks)
    assert ranks[:2] == ranks[7:], "tokens 5 and 6, which both rows report"
    assert len(make.unpack(result.tokens)) == 1


@pytest.mark.parametrize(
    "prompt_rows",
    [
        ([1], [1], [1]),
        ([-1], [1], [1]),
        ([0, 0], [1, 2], [1, 1]),
        ([0], [0], [1]),
        ([0], [1], [0]),
        ([0], [1], [6]),
        ([0], [1 << 30], [1 << 30]),
    ],
)
def test_plans_that_contradict_themselves(
    make: SimpleNamespace, tiny: SimpleNamespace, prompt_rows: tuple[list[int], ...]
) -> None:
    new = make.slot(0, text(8), [0, 1], sampling=WANTED)
    with pytest.raises(PlanError, match="prompt_rows"):
        make.runner(tiny.directory).execute(
            make.plan(1, [(0, 0, 5, 0)], new_slots=[new], prompt_rows=prompt_rows)
        )


@pytest.mark.parametrize(("sampling", "count"), [(greedy(), 7), (WANTED, 8)])
def test_plans_that_contradict_the_slot(
    make: SimpleNamespace, tiny: SimpleNamespace, sampling: Any, count: int
) -> None:
    """The slot asks for none; or the token is the one that is about to be sampled."""
    new = make.slot(0, text(8), [0, 1], sampling=sampling)
    plan = make.plan(1, [(0, 0, 8, 1)], new_slots=[new], prompt_rows=([0], [1], [count]))
    with pytest.raises(PlanError, match="of which none are wanted, or a token that is not known"):
        make.runner(tiny.directory).execute(plan)


def test_a_prompt_whose_logits_are_not_finite_fails_alone(
    make: SimpleNamespace, tiny: SimpleNamespace
) -> None:
    runner = make.runner(tiny.directory, max_slots=2)
    logits, calls = runner.model.logits, []

    def spoiled(hidden: Tensor) -> Tensor:
        calls.append(len(hidden))
        return logits(hidden).fill_(torch.nan) if len(calls) == 1 else logits(hidden)

    runner.model.logits = spoiled
    slots = [make.slot(slot, text(4), [slot], sampling=WANTED) for slot in range(2)]
    rows = [(0, 0, 4, 1), (1, 0, 4, 1)]
    result = runner.execute(make.plan(1, rows, new_slots=slots, prompt_rows=([0, 1], [1, 1], [3, 3])))
    assert calls[:3] == [2, 2, 2], "as many at once as there are slots"
    assert [(error.row, error.message) for error in result.errors] == [(0, NOT_FINITE)]
    assert make.unpack(result.prompt_logprobs.rows.rows) == [1]
    assert len(make.unpack(result.prompt_logprobs.ranks)) == 3
    assert make.unpack(result.tokens)[0] == -1
    result = runner.execute(make.plan(2, [(0, 4, 1, 1)], table_appends=([0], [2])))
    assert [error.row for error in result.errors] == [0], "it fails in every row from then on"
