"""A draft model: the same tokens, in fewer steps if it is any good; its pages hold what the target's hold."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_worker.errors import ModelError, PlanError
from gpu_worker.memory.cache import make_caches
from gpu_worker.models.load import load_model
from gpu_worker.step.draft_model import DraftModel, load_draft
from gpu_worker.step.runner import Runner

PROMPT = [5, 17, 3, 88, 41, 41, 9, 60, 2, 73, 28]
COUNT = 30
CPU = torch.device("cpu")
GUESS = -1


def drafting(make: SimpleNamespace, target: Any, draft: Any, **changes: int) -> Runner:
    """A runner of `target` with a drafter of `draft`, both directories; pages are full of NaN."""
    runner = make.runner(target, **changes)
    model = load_model(draft, CPU, runner.kernels, torch.float32)
    limits = runner.limits
    kv = runner.caches[0].format
    caches = make_caches(model.config, limits.num_blocks, limits.block_size, kv, CPU)
    for tensor in (each for cache in caches for each in cache.tensors()):
        tensor.fill_(torch.nan)
    drafter = DraftModel(model, caches, runner.kernels, limits.vocab_size)
    return Runner(runner.model, runner.caches, runner.kernels, limits, drafter)


def run(driver: Any, sequence: Any, length: int = 3) -> int:
    """Until there are COUNT tokens more; how many steps it took."""
    steps = 0
    while (gained := len(sequence.tokens) - len(PROMPT)) < COUNT:
        guesses = [GUESS] * min(length, COUNT - gained - 1)
        driver.step((sequence, len(sequence.tokens) - sequence.computed), drafts={sequence.slot: guesses})
        steps += 1
    return steps


SAMPLING = {
    "greedy": {},
    "penalties": {"frequency_penalty": 0.4, "repetition_penalty": 1.3},
    "drawn": {"temperature": 1.0, "seed": 11},
    "drawn with all": {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "presence_penalty": 0.5, "seed": 3},
}


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory, make: SimpleNamespace) -> Any:
    """A model that is much like `tiny`: its weights with noise."""
    model = make.llama()
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    directory = tmp_path_factory.mktemp("near")
    model.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("params", SAMPLING.values(), ids=SAMPLING.keys())
def test_tokens_are_the_same_with_a_draft_model(make, tiny, near, params) -> None:
    sampling = make.greedy(**params)
    alone = make.Driver(make.runner(tiny.directory))
    truth = alone.generate(alone.admit(1, PROMPT, sampling=sampling), COUNT)
    steps = {}
    for name, draft in (("itself", tiny.directory), ("near", near)):
        driver = make.Driver(drafting(make, tiny.directory, draft, block_size=2), seed=3)
        sequence = driver.admit(1, PROMPT, sampling=sampling)
        steps[name] = run(driver, sequence)
        assert sequence.tokens[len(PROMPT) :] == truth
    # The target itself is always right, given the same noise: 1 + 3 tokens a step.
    assert steps["itself"] == 8
    assert 8 < steps["near"] < 25


@pytest.mark.parametrize("size", [93, 105])
@pytest.mark.parametrize("params", SAMPLING.values(), ids=SAMPLING.keys())
def test_an_embedding_with_more_or_fewer_rows(make, tiny, tmp_path, params, size) -> None:
    """As Qwen2.5 0.5B beside 7B: rows of no token are neither proposed nor looked up."""
    draft = make.llama()
    draft.resize_token_embeddings(size)
    with torch.no_grad():
        draft.lm_head.weight[97:] = 9 * draft.lm_head.weight[40]  # would be proposed
    draft.save_pretrained(tmp_path)
    sampling = make.greedy(**params)
    prompt = [*PROMPT[:-1], 96]  # which the smaller one has not
    alone = make.Driver(make.runner(tiny.directory))
    truth = alone.generate(alone.admit(1, prompt, sampling=sampling), COUNT)
    driver = make.Driver(drafting(make, tiny.directory, tmp_path, block_size=2), seed=3)
    sequence = driver.admit(1, prompt, sampling=sampling)
    steps = run(driver, sequence)
    assert sequence.tokens[len(prompt) :] == truth
    assert steps == 8 if size > 97 else steps < 25


def test_its_pages_are_right_whatever_came_of_the_drafts(make, tiny) -> None:
    """Prefill chunks, plain decodes, drafts given and guessed, in every mixture: the target as its own draft
    has written the same keys and values to the same places."""
    runner = drafting(make, tiny.directory, tiny.directory, block_size=2)
    driver, chance = make.Driver(runner, seed=1), Random(2)
    sequences = [driver.admit(slot, PROMPT[slot:]) for slot in range(4)]
    layers = len(runner.caches) // 2
    for _ in range(14):
        rows, drafts = [], {}
        for sequence in chance.sample(sequences, chance.randrange(1, 5)):
            missing = len(sequence.tokens) - sequence.computed
            count = min(missing, chance.randrange(1, 6))
            rows.append((sequence, count))
            if count == missing and len(sequence.tokens) < 40:
                length = chance.randrange(4)
                wrong = [chance.randrange(97) for _ in range(length)]
                drafts[sequence.slot] = chance.choice(([], [GUESS] * length, wrong))
        driver.step(*rows, drafts=drafts)
        for sequence in sequences:
            blocks = torch.tensor(sequence.blocks, dtype=torch.int64)
            for own, other in zip(runner.caches[:layers], runner.caches[layers:], strict=True):
                for one, two in zip(own.tensors(), other.tensors(), strict=True):
                    torch.testing.assert_close(one[blocks], two[blocks], atol=1e-4, rtol=1e-4, equal_nan=True)
    assert max(len(sequence.tokens) for sequence in sequences) > 20


def test_guesses_without_a_draft_model_are_refused(make, tiny) -> None:
    driver = make.Driver(make.runner(tiny.directory))
    sequence = driver.admit(1, PROMPT)
    with pytest.raises(PlanError, match="draft model"):
        driver.step((sequence, 11), drafts={1: [GUESS]})


def test_given_and_guessed_in_one_row_are_refused(make, tiny) -> None:
    driver = make.Driver(drafting(make, tiny.directory, tiny.directory))
    with pytest.raises(PlanError, match="some of a row's"):
        driver.step((driver.admit(1, PROMPT), 11), drafts={1: [4, GUESS]})


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"vocab_size": 98}, "vocabulary"), ({"max_position_embeddings": 32}, "made for 32 tokens")],
)
def test_a_model_that_does_not_fit_is_named(make, tiny, saved, changes, what) -> None:
    runner = make.runner(tiny.directory)
    other = saved(**changes)
    with pytest.raises(ModelError, match=what):
        load_draft(other.directory, tiny.directory, runner.model, runner.kernels, CPU, 64)


@pytest.mark.parametrize("size", [90, 104])
def test_one_tokenizer_with_embeddings_of_several_sizes(make, tiny, saved, tmp_path, size) -> None:
    runner = make.runner(tiny.directory)
    other = saved(vocab_size=size)
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(ModelError, match="vocabulary"):
        load_draft(other.directory, target, runner.model, runner.kernels, CPU, 64)
    for directory in (target, other.directory):
        (directory / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    draft = load_draft(other.directory, target, runner.model, runner.kernels, CPU, 64)
    assert draft.config.vocab_size == size
    (target / "tokenizer.json").write_text('{"model": {"vocab": {"b": 0}}}')
    with pytest.raises(ModelError, match="vocabulary"):
        load_draft(other.directory, target, runner.model, runner.kernels, CPU, 64)


def test_another_tokenizer_is_another_vocabulary(make, tiny, saved) -> None:
    runner = make.runner(tiny.directory)
    other = saved()
    assert load_draft(other.directory, tiny.directory, runner.model, runner.kernels, CPU, 64)
    (other.directory / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    with pytest.raises(ModelError, match="vocabulary"):
        load_draft(other.directory, tiny.directory, runner.model, runner.kernels, CPU, 64)
