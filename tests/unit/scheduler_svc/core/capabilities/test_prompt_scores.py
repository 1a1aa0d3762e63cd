"""Log probabilities of prompts: each token's once, whatever is cached, lost or preempted."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core.alternatives import MOST
from scheduler_svc.core.capabilities import prompt_scores
from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.phases.preempt import preempt
from scheduler_svc.core.plan import PromptScores
from scheduler_svc.core.sequence import SequenceGroup

PROMPT = [index % 7 for index in range(21)]


def check(world: Any, group: SequenceGroup, begin: int = 1) -> None:
    """All tokens of the prompt from `begin` on, each once."""
    assert world.scored[group] == world.fake.scores(group.request)[begin - 1 :]
    world.check(group)


@pytest.mark.parametrize("length", [1, 2, 4, 5, 21])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_in_chunks_beside_answers(alone: Callable[..., Any], length: int, depth: int) -> None:
    world = alone(depth=depth, max_step_tokens=6, num_blocks=32)
    answers = [world.arrive([seed, 1], seed=seed) for seed in (3, 4)]
    group = world.arrive(PROMPT[:length], scores_prompt=True, n=2, max_tokens=3)
    world.run()
    check(world, group)
    assert not world.scored.keys() & set(answers)


def test_what_is_cached_is_computed_again_and_serves_others(alone: Callable[..., Any]) -> None:
    world = alone(num_blocks=64)
    for scores_prompt, computed in ((False, 21), (True, 21), (False, 1), (True, 21)):
        before = world.worker.computed_tokens
        group = world.arrive(PROMPT, scores_prompt=scores_prompt, max_tokens=1)
        world.run()
        assert world.worker.computed_tokens - before == computed
        assert group.cached_tokens == 21 - computed
        if scores_prompt:
            check(world, group)


def test_it_waits_for_no_prefix_and_others_wait_for_its(
    alone: Callable[..., Any],
) -> None:
    world = alone(num_blocks=64, max_step_tokens=8)
    first = world.arrive(PROMPT, max_tokens=1)
    world.step()
    scored, follower = world.arrive(PROMPT, scores_prompt=True), world.arrive([*PROMPT, 1])
    world.run()
    check(world, scored)
    for group in (first, follower):
        world.check(group)
    assert follower.cached_tokens == 20


@pytest.mark.parametrize(("delivered", "cached"), [(0, 0), (1, 0), (4, 0), (5, 4), (12, 8), (21, 20)])
def test_what_was_delivered_is_not_delivered_again(
    alone: Callable[..., Any], delivered: int, cached: int
) -> None:
    """And so far cached blocks are good enough, but for the last of these tokens."""
    world = alone(num_blocks=64)
    world.arrive(PROMPT, max_tokens=1)
    world.run()
    group = world.arrive(PROMPT, scores_prompt=True, scored_tokens=delivered, max_tokens=1)
    world.run()
    check(world, group, max(1, delivered))
    assert group.cached_tokens == cached


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_it_goes_on_with_another_worker_of_the_same_kind(alone: Callable[..., Any], steps: int) -> None:
    world = alone(max_step_tokens=5, fingerprint="one")
    group = world.arrive(PROMPT, scores_prompt=True, max_tokens=2)
    world.run(steps)
    world.fleet.remove_worker(world.scheduler)
    assert group.fingerprint == ("one" if steps else ""), "then the answer has begun"
    world.join()
    world.run()
    check(world, group)


def test_preempted_within_its_prompt_it_goes_on_where_it_was(alone: Callable[..., Any]) -> None:
    """What its rows in flight would have reported is computed again; what was reported is not."""
    world = alone(depth=2, max_step_tokens=5)
    group = world.arrive(PROMPT, scores_prompt=True, max_tokens=2)
    world.run(2)
    assert group.scored == 1 + 10
    assert world.scheduler.in_flight, "the third chunk"
    preempt(world.scheduler.state, group.sequences[0])
    assert world.worker.computed_tokens == 15
    world.run()
    assert world.worker.computed_tokens == 15 + 21 - 8 + 1, "from the last block on that was reported"
    check(world, group)


@pytest.mark.parametrize("most", [1, 3, 8])
def test_a_step_reports_no_more_than_a_message_holds(
    alone: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(prompt_scores, "MOST", 20 * most)
    world = alone(num_blocks=64, max_step_tokens=40)
    groups = [world.arrive([*PROMPT, seed], seed=seed, scores_prompt=True, n=2) for seed in range(2)]
    answer = world.arrive(PROMPT[1:], max_tokens=30)
    reported = []
    while world.step():
        reported += [sum(flight.plan.prompt_rows.counts) for flight in world.scheduler.flights]
    assert max(reported) == most
    for group in groups:
        check(world, group)
    world.check(answer)


@pytest.mark.parametrize(("alternatives", "most"), [(21, 2), (50, 1), (1000, 1)])
def test_more_alternatives_are_fewer_tokens(
    alone: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, alternatives: int, most: int
) -> None:
    monkeypatch.setattr(prompt_scores, "MOST", 60)
    world = alone(num_blocks=64, max_step_tokens=40)
    group = world.arrive(PROMPT, scores_prompt=True, prompt_alternatives=alternatives)
    reported = []
    while world.step():
        reported += [sum(flight.plan.prompt_rows.counts) for flight in world.scheduler.flights]
    assert max(reported) == most
    check(world, group)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_row_that_samples_after_its_prompt_leaves_others_nothing(
    alone: Callable[..., Any], depth: int
) -> None:
    world = alone(depth=depth, num_blocks=64, max_step_tokens=40)
    groups = [
        world.arrive([*PROMPT[:5], seed], seed=seed, scores_prompt=True, alternatives=MOST, max_tokens=3)
        for seed in range(3)
    ]
    while world.step():
        for flight in world.scheduler.flights:
            assert min(flight.plan.rows.counts) > 0
    for group in groups:
        check(world, group)


@pytest.mark.parametrize("spoil", [lambda found: found.clear(), lambda found: found.update({0: SHORT})])
def test_a_worker_that_leaves_some_out_is_at_fault(
    bench: Callable[..., Any], spoil: Callable[[dict[int, PromptScores]], None]
) -> None:
    world = bench()
    world.arrive(PROMPT[:5], scores_prompt=True)
    result = world.worker.execute(world.plan())
    spoil(result.prompt_scores)
    with pytest.raises(WorkerFault, match="log probabilities of a prompt are missing"):
        world.scheduler.check(result)


SHORT = PromptScores(3, [])


def test_who_does_not_ask_has_no_such_rows(bench: Callable[..., Any], fake: SimpleNamespace) -> None:
    world = bench()
    world.arrive(PROMPT[:9])
    assert world.plan().prompt_rows == ((), (), ())
