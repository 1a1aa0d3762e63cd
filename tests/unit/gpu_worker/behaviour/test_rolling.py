"""Texts that go on past the model's context: what the worker computes, and what they take to go on."""

import os
from array import array
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import psutil
import pytest
import torch

from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.reference.noise import gumbel, keys
from scheduler_svc.core.request import Request
from scheduler_svc.core.rolling import dropped, kept
from tests.support.closed_loop import ClosedLoop

TOKENS = int(os.environ.get("ENDLESS_TOKENS", "5000"))
"""Of the text that is to take no memory. What is asked of it is 100000."""

PROMPT = [5, 17, 3, 88, 41, 41, 9, 60, 2, 73, 28]
CONTEXT = 48
SEED = 11


@pytest.fixture(scope="module")
def shallow(make, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A random model of one layer: as transformers' model and as a directory."""
    model = make.llama(num_hidden_layers=1)
    directory = tmp_path_factory.mktemp("shallow")
    model.save_pretrained(directory)
    return SimpleNamespace(model=model, directory=directory)


def request(make, **fields) -> Request:
    sampling = make.sampled(seed=SEED, **fields)
    return Request("r", array("i", PROMPT), rolling=True, sampling=sampling)


def drawn(model, context: list[int], place: int) -> tuple[int, float]:
    """The token for that place in the text after what is in the context, and by how much it won."""
    with torch.inference_mode():
        logits = model(torch.tensor([context])).logits[0, -1]
    words = keys(torch.tensor([SEED]), torch.tensor([place]), torch.tensor([0]))
    best = (logits + gumbel(words, len(logits))[0]).topk(2)
    return int(best.indices[0]), float(best.values[0] - best.values[1])


def test_a_plain_loop_draws_the_same(make, shallow) -> None:
    runner = make.runner(shallow.directory, max_model_len=CONTEXT, num_blocks=16)
    tokens = ClosedLoop(runner).generate(request(make), 180)
    context, expected = list(PROMPT), []
    for place in range(len(PROMPT), len(PROMPT) + 180):
        if len(context) == CONTEXT:
            context = context[:4] + context[-(CONTEXT // 2 - 4) :]
        expected.append(drawn(shallow.model, context, place)[0])
        context.append(expected[-1])
    assert list(tokens) == expected
    assert len(set(tokens)) > 20, "a model that repeats itself shows little"


def test_the_same_context_again_draws_something_else(make, shallow) -> None:
    """At one position of the slot, at another place in the text."""
    runner = make.runner(shallow.directory, max_model_len=CONTEXT)
    firsts = set()
    for dropped_tokens in range(0, 60, 6):
        runner.reset()
        slot = make.slot(
            0, PROMPT, [0, 1, 2], sampling=make.sampled(seed=SEED), dropped_tokens=dropped_tokens
        )
        result = runner.execute(make.plan(1, [(0, 0, len(PROMPT), 1)], new_slots=[slot]))
        (token,) = make.unpack(result.tokens)
        assert token == drawn(shallow.model, PROMPT, len(PROMPT) + dropped_tokens)[0]
        firsts.add(token)
    assert len(firsts) > 4


def test_penalties_see_what_is_in_the_context(make, shallow) -> None:
    """Greedy under a penalty: a plain count over the context, of which the prompt may still be a part."""
    runner = make.runner(shallow.directory, max_model_len=CONTEXT, num_blocks=16)
    greedy = replace(request(make), sampling=make.greedy(frequency_penalty=1.5))
    tokens = ClosedLoop(runner).generate(greedy, 100)
    text = array("i", PROMPT) + tokens
    for place in range(len(PROMPT), len(text)):
        count = dropped(place, CONTEXT)
        context = list(kept(text[:place], count))
        with torch.inference_mode():
            logits = shallow.model(torch.tensor([context])).logits[0, -1]
            for token in context[max(4, len(PROMPT) - count) :]:
                logits[token] -= 1.5
        assert text[place] == int(logits.argmax())


@pytest.mark.parametrize("kernels", [build.supported()[0]], indirect=True)
def test_without_end_in_constant_memory(make, shallow) -> None:
    """Neither the pool nor the process grows, and late tokens are what their contexts say."""
    runner = make.runner(shallow.directory, max_model_len=CONTEXT, num_blocks=40)
    loop = ClosedLoop(runner)
    group = loop.ask(request(make))
    text, process, memory, held = array("i", PROMPT), psutil.Process(), [], 0
    while len(text) < TOKENS:
        text.extend(gain.token for gain in loop.step())
        held = max(held, loop.scheduler.held_blocks)
        if len(text) % 500 == 0:
            memory.append(process.memory_info().rss)
    assert held <= CONTEXT // 4
    assert len(group.sequences[0].tokens) <= CONTEXT
    # The first quarter is for warming up.
    grown = memory[-1] - memory[len(memory) // 4]
    print(f"{TOKENS} tokens: {held} blocks held at most, {grown / 2**10:.0f} KiB grown")
    assert grown < 2 * 2**20
    random = Random(0)
    for place in [*random.sample(range(CONTEXT, TOKENS), 40), TOKENS - 1]:
        context = list(kept(text[:place], dropped(place, CONTEXT)))
        token, margin = drawn(shallow.model, context, place)
        assert text[place] == token or margin < 1e-4
