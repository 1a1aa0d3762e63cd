"""Answers under rules: those of transformers, and the same however they come about."""

from array import array
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_worker.kernels.cpu import build
from gpu_worker.sampling.dry import Dry as DryPenalty
from gpu_worker.sampling.dry import Repetitions
from proto.sampling_pb2 import Dry, TokenRules, TokenSequence
from scheduler_svc.core.request import Request
from tests.support.closed_loop import ClosedLoop
from tests.unit.gpu_worker.conftest import back_end, makers

PROMPT = [5, 17, 3, 88, 41, 41, 9, 60, 2, 73, 28]
COUNT = 30
VOCAB = 97


@pytest.fixture(scope="module")
def make() -> SimpleNamespace:
    """One back end: but for the choice of a token, all do the same."""
    return makers(back_end(build.supported()[0] if build.supported() else "torch"))


def rules_around(answer: list[int], chance: Random, dry: bool = True) -> TokenRules:
    """Rules that change the course of an answer again and again. `dry`: one is on repetitions."""
    end = answer[chance.randrange(2, 6)]
    rules = TokenRules(min_tokens=COUNT // 2, end_tokens=[end])
    for start in range(0, len(answer) - 3, 2):
        rules.bad_words.append(TokenSequence(tokens=answer[start : start + 1 + start % 4]))
    if dry:
        rules.dry.CopyFrom(Dry(dry_multiplier=3, dry_base=2, dry_penalty_last_n=20, breaker_tokens=[5]))
    others = [token for token in range(VOCAB) if chance.random() < 0.2]
    rules.biased_tokens[:] = others
    rules.biases[:] = [float(torch.tensor(chance.uniform(-4, 4))) for _ in others]
    rules.allowed_tokens[:] = [token for token in range(VOCAB) if chance.random() < 0.9 or token == end]
    return rules


def oracle(model: Any, rules: TokenRules) -> list[int]:
    """transformers' greedy answer. Its bad words count within the prompt, too: here none begins there."""
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=COUNT,
            min_new_tokens=rules.min_tokens,
            eos_token_id=list(rules.end_tokens),
            pad_token_id=0,
            do_sample=False,
            bad_words_ids=[list(tokens) for tokens in {tuple(word.tokens) for word in rules.bad_words}],
            sequence_bias=[
                [[token], bias] for token, bias in zip(rules.biased_tokens, rules.biases, strict=True)
            ],
            suppress_tokens=sorted(set(range(VOCAB)) - set(rules.allowed_tokens)),
        )
    found: list[int] = out[0, len(PROMPT) :].tolist()
    return found


def request(name: str, sampling: Any, n: int = 1) -> Request:
    ends = frozenset(sampling.rules.end_tokens)
    return Request(name, array("i", PROMPT), max_tokens=COUNT, stop_token_ids=ends, n=n, sampling=sampling)


def answers(loop: ClosedLoop, requests: list[Request]) -> dict[tuple[str, int], list[int]]:
    """The answers to requests that run beside each other."""
    groups, found = {loop.ask(one): one.request_id for one in requests}, {}
    while any(group.unfinished for group in groups):
        for group, index, token, *_ in loop.step():
            found.setdefault((groups[group], index), []).append(token)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_greedy_answers_are_those_of_transformers(make, tiny, seed) -> None:
    free = make.expected(tiny.model, PROMPT, COUNT)
    rules = rules_around([token for token in free if token not in PROMPT], Random(seed), dry=False)
    truth = oracle(tiny.model, rules)
    runner = make.runner(tiny.directory)
    asked = request("r", make.greedy(rules=rules))
    assert answers(ClosedLoop(runner), [asked]) == {("r", 0): truth}
    assert truth[:6] != free[:6]


def test_answers_are_the_same_beside_others_preempted_and_forked(make, tiny) -> None:
    free = make.expected(tiny.model, PROMPT, COUNT)
    requests = [
        request(str(seed), make.sampled(seed=seed, rules=rules_around(free, Random(seed))), n=1 + seed % 3)
        for seed in range(8)
    ]
    requests.append(request("free", make.sampled(seed=9)))
    alone = {}
    for one in requests:
        alone |= answers(ClosedLoop(make.runner(tiny.directory, num_blocks=64)), [one])
    # Blocks for three of the answers at a time.
    assert answers(ClosedLoop(make.runner(tiny.directory, num_blocks=36)), requests) == alone
    for (name, _), tokens in alone.items():
        if name != "free":
            rules = requests[int(name)].sampling.rules
            assert set(tokens) <= set(rules.allowed_tokens)
            assert not set(tokens[: rules.min_tokens]) & set(rules.end_tokens)
            text = " ".join(map(str, ["", *tokens, ""]))
            assert not [
                word.tokens for word in rules.bad_words if f" {' '.join(map(str, word.tokens))} " in text
            ]


@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_an_answer_is_the_same_with_drafts(make, tiny, right) -> None:
    """Drafts that the rules allow or not, that hold or not; and taken up again half-way."""
    free = make.expected(tiny.model, PROMPT, COUNT)
    for seed in range(4):
        sampling = make.sampled(seed=seed, rules=rules_around(free, Random(seed)))
        driver = make.Driver(make.runner(tiny.directory))
        truth = driver.generate(driver.admit(1, PROMPT, sampling=sampling), COUNT)
        driver, chance = make.Driver(make.runner(tiny.directory, block_size=2), seed=seed), Random(seed)
        half = PROMPT + truth[: COUNT // 2]
        sequence = driver.admit(1, half, sampling=sampling, prompt_length=len(PROMPT))
        while (gained := len(sequence.tokens) - len(PROMPT)) < COUNT:
            drafts = [
                token if chance.random() < right else chance.randrange(VOCAB)
                for token in truth[gained : gained + min(chance.randrange(6), COUNT - gained - 1)]
            ]
            driver.step((sequence, len(sequence.tokens) - sequence.computed), drafts={1: drafts})
        assert sequence.tokens[len(PROMPT) :] == truth


def test_min_tokens_count_from_the_beginning_of_a_rolling_text(make, tiny) -> None:
    end = make.expected(tiny.model, PROMPT, 3)[2]
    rules = TokenRules(min_tokens=150, end_tokens=[end], biased_tokens=[end], biases=[100])
    asked = Request(
        "r",
        array("i", PROMPT),
        rolling=True,
        stop_token_ids=frozenset([end]),
        sampling=make.sampled(seed=1, rules=rules),
    )
    loop = ClosedLoop(make.runner(tiny.directory, max_model_len=48, num_blocks=16))
    found = answers(loop, [asked])["r", 0]
    assert len(found) == 151
    assert found.index(end) == 150


def test_what_is_repeated_is_penalized_in_whatever_steps_it_comes(make, tiny) -> None:
    """A greedy answer of a model that repeats itself, with the penalties computed beside it."""
    dry = Dry(dry_multiplier=4, dry_base=1.5, dry_allowed_length=1, dry_penalty_last_n=2**31 - 1)
    prompt, tokens = PROMPT * 3, list[int]()
    penalty = DryPenalty.of(dry)
    for _ in range(COUNT):
        with torch.inference_mode():
            logits = tiny.model(torch.tensor([[*prompt, *tokens]])).logits[0, -1]
        logits = logits.clone()
        followers, amounts = penalty.penalties(penalty.after(Repetitions(0), [*prompt, *tokens]))
        logits[torch.from_numpy(followers).long()] -= torch.from_numpy(amounts)
        tokens.append(int(logits.argmax()))
    sampling = make.greedy(rules=TokenRules(dry=dry))
    asked = Request("r", array("i", prompt), max_tokens=COUNT, sampling=sampling)
    assert answers(ClosedLoop(make.runner(tiny.directory)), [asked])["r", 0] == tokens
    assert tokens != make.expected(tiny.model, prompt, COUNT)
