"""Greedy answers are the same whatever else is on: the scheduler's core and the worker's runner, together.

Every row of the table below is a way to run them; the answers are always those of transformers.
"""

import random
from array import array
from collections import deque
from dataclasses import replace
from itertools import cycle, islice

import pytest

from gpu_worker.memory.host import HostPages
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.runner import Runner
from proto.sampling import greedy
from scheduler_svc.core.beam_search import BeamSearch
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.policies import POLICIES
from scheduler_svc.core.request import Request
from scheduler_svc.wire import plan_to, result_from
from tests.support import oracle
from tests.support.deployment import ROOT, SHIPPED_MODEL

GREEDY = greedy()
OUTPUT = 24
BEAM_WIDTH = 3
TEXTS = [
    "Tell me a story about a fox.",
    "Tell me a story about a fox and an owl who lived near the river and went for a walk in the snow.",
    "What is 7 + 5?",
    "List five fruits. List five fruits. List five fruits.",
    "Who are you?",
]


@pytest.fixture(scope="module")
def runner() -> Runner:
    """With a draft model, and with more blocks than any way below uses."""
    draft = ROOT / "ops" / "tiny_model" / "draft"
    settings = WorkerSettings(
        model=SHIPPED_MODEL,
        draft_model=draft,
        dtype="float32",  # as the oracle
        kv_memory=32 << 20,
        threads=1,
        max_slots=16,
        block_size=8,
    )
    return load(settings)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return [oracle.chat_prompt(SHIPPED_MODEL, text) for text in TEXTS]


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]]) -> list[list[int]]:
    return [oracle.greedy(SHIPPED_MODEL, prompt, OUTPUT, end=False) for prompt in prompts]


@pytest.fixture(scope="module")
def searched(prompts: list[list[int]]) -> list[list[int]]:
    return oracle.beams(SHIPPED_MODEL, prompts[0], OUTPUT, BEAM_WIDTH, BEAM_WIDTH, eos_token_id=None)


def answers(runner: Runner, requests: list[Request], fleet: Fleet, limits: WorkerLimits, depth: int):
    """The outputs of all requests, which come one a step."""
    runner.reset()
    scheduler, _ = fleet.add_worker(limits)
    groups, results, waiting = [], deque(), deque(requests)
    outputs = {request.request_id: [[] for _ in range(request.n)] for request in requests}
    while waiting or not scheduler.idle:
        if waiting:
            group, outcome = fleet.accept(waiting.popleft())
            assert not outcome.failed, outcome.failed
            groups.append(group)
        while scheduler.in_flight < depth and (plan := scheduler.plan()) is not None:
            results.append(runner.execute(plan_to(plan)))
        if results:
            outcome = scheduler.complete(result_from(results.popleft())[0])
            fleet.settle(scheduler, outcome)
            assert not outcome.failed, outcome.failed
            for gain in outcome.gains:
                outputs[gain.group.request.request_id][gain.sequence_index].append(gain.token)
        scheduler.check_integrity()
    return outputs


# Each list is gone through in turns of a length of its own, so that all pairs come up.
WAYS = list(
    islice(
        zip(
            cycle(["off", "ngram", "draft"]),
            cycle([1, 2]),
            cycle([512, 7, 32, 19, 64]),  # tokens a step
            cycle([400, 60, 36, 44]),  # blocks
            cycle(POLICIES),
            cycle([0, 200, 0, 0, 20, 0, 0, 7]),  # blocks on the host
            strict=False,
        ),
        40,
    )
)


@pytest.mark.parametrize(("speculation", "depth", "budget", "blocks", "policy", "host"), WAYS)
def test_greedy_answers_are_always_the_same(
    runner: Runner,
    prompts: list[list[int]],
    expected: list[list[int]],
    searched: list[list[int]],
    speculation: str,
    depth: int,
    budget: int,
    blocks: int,
    policy: str,
    host: int,
) -> None:
    own = runner.limits
    names = ("block_size", "max_slots", "max_model_len", "max_step_tokens", "vocab_size")
    limits = WorkerLimits(num_blocks=blocks, can_draft=True, **{name: getattr(own, name) for name in names})
    if host:
        runner.host = HostPages(runner.caches, host)
        limits = replace(limits, host_blocks=host, swap_block_us=1, token_us=100)
    requests = [
        Request(f"{round_}.{number}", array("i", prompt), OUTPUT, sampling=GREEDY, tenant=str(number % 2))
        for round_ in range(2)
        for number, prompt in enumerate(prompts)
    ]
    requests.append(replace(requests[0], request_id="samples", n=3))
    search = BeamSearch(BEAM_WIDTH)
    if (
        blocks >= BEAM_WIDTH * limits.blocks_for(len(prompts[0]) + OUTPUT) + limits.watermark
        and budget > BEAM_WIDTH
    ):
        requests.append(replace(requests[0], request_id="beams", n=BEAM_WIDTH, beams=search))
    random.Random(budget * blocks).shuffle(requests)
    found = answers(runner, requests, Fleet(budget, policy, speculation), limits, depth)
    assert found.pop("beams", searched) == searched
    assert found.pop("samples") == [expected[0]] * 3
    for name, (output,) in found.items():
        assert output == expected[int(name.split(".")[1])], name
