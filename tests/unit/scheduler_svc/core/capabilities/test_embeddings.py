"""Texts that are embedded: read like prompts, in chunks beside others, and nothing is generated."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_svc.core.alternatives import NUMBERS
from scheduler_svc.core.errors import RequestRefused, WorkerFault
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.plan import StepResult
from scheduler_svc.core.request import Pooling
from scheduler_svc.core.scheduler import Scheduler

WAYS = [Pooling.MEAN, Pooling.LAST, Pooling.ALL]
TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("pooling", WAYS)
@pytest.mark.parametrize("length", [1, 4, 5, 40, 64])
def test_a_text_beside_answers(
    alone: Callable[..., Any], fake: SimpleNamespace, pooling: Pooling, length: int
) -> None:
    world = alone(max_step_tokens=8)
    answers = [world.arrive([seed, 1], seed=seed) for seed in (3, 4)]
    text = world.arrive([index % 7 for index in range(length)], pooling=pooling)
    world.run()
    assert world.embedded == {text: fake.embedding(text.request)}
    for answer in answers:
        world.check(answer)
    assert world.given[text] == [[]]
    assert world.scheduler.idle


def test_the_last_token_alone_is_computed_of_a_text_that_is_known(alone: Callable[..., Any]) -> None:
    world = alone()
    for pooling, computed in ((Pooling.LAST, 9), (Pooling.LAST, 1), (Pooling.ALL, 9), (Pooling.MEAN, 9)):
        before = world.worker.computed_tokens
        world.arrive(TEXT, pooling=pooling)
        world.run()
        assert world.worker.computed_tokens - before == computed


@pytest.mark.parametrize("pooling", WAYS)
def test_an_answer_begins_with_the_blocks_of_a_text(alone: Callable[..., Any], pooling: Pooling) -> None:
    world = alone()
    text = world.arrive(TEXT, pooling=pooling)
    answer = world.arrive([*TEXT, 10])
    world.run()
    assert text in world.embedded
    assert answer.cached_tokens == 8
    world.check(answer)


@pytest.mark.parametrize("pooling", WAYS)
def test_it_starts_over_on_another_worker(
    alone: Callable[..., Any], fake: SimpleNamespace, pooling: Pooling
) -> None:
    world = alone(max_step_tokens=4)
    text = world.arrive(TEXT, pooling=pooling)
    world.step()
    world.fleet.remove_worker(world.scheduler)
    world.join()
    world.run()
    assert world.embedded == {text: fake.embedding(text.request)}


@pytest.mark.parametrize("pooling", WAYS)
def test_a_small_pool_makes_a_text_start_over(
    alone: Callable[..., Any], fake: SimpleNamespace, pooling: Pooling
) -> None:
    world = alone(num_blocks=16, max_step_tokens=3)
    answers = [world.arrive([seed], seed=seed, max_tokens=28) for seed in range(2)]
    world.run(6)
    text = world.arrive([index % 7 for index in range(32)], pooling=pooling)
    world.run()
    assert world.worker.computed_tokens > 32 + 2 * 28
    assert world.embedded == {text: fake.embedding(text.request)}
    for answer in answers:
        world.check(answer)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [1] * 65}, "prompt"),
        ({"prompt": [40]}, "prompt"),
        ({"prompt": [1], "dimensions": 3}, "dimensions"),
    ],
)
def test_what_never_fits_is_refused(fake: SimpleNamespace, fields: dict[str, Any], param: str) -> None:
    fleet = Fleet(1000)
    fleet.add_worker(fake.limits())
    _, outcome = fleet.accept(fake.request(**fields, pooling=Pooling.LAST))
    ((_, error),) = outcome.failed
    assert isinstance(error, RequestRefused)
    assert error.param == param


def test_texts_for_a_classifier(alone: Callable[..., Any], fake: SimpleNamespace) -> None:
    """They are cut, preempted and begun again on another worker, and take what is cached."""
    world = alone(num_labels=2, num_blocks=12, max_step_tokens=7)
    texts = [
        world.arrive([(seed + index) % 7 for index in range(30)], pooling=Pooling.CLASSIFY)
        for seed in (0, 0, 1)
    ]
    world.run(2)
    world.fleet.remove_worker(world.scheduler)
    world.join()
    world.run()
    assert world.embedded == {text: fake.embedding(text.request) for text in texts}
    assert world.worker.computed_tokens < 3 * 30
    assert world.scheduler.idle


@pytest.mark.parametrize(
    ("labels", "pooling", "message"),
    [
        (2, Pooling.NO_POOLING, "generates none"),
        (2, Pooling.LAST, "embeds none"),
        (0, Pooling.CLASSIFY, "no classification head"),
    ],
)
def test_a_classifier_is_for_labels_alone(
    fake: SimpleNamespace, labels: int, pooling: Pooling, message: str
) -> None:
    fleet = Fleet(1000)
    fleet.add_worker(fake.limits(num_labels=labels))
    _, outcome = fleet.accept(fake.request([1], pooling=pooling))
    ((_, error),) = outcome.failed
    assert isinstance(error, RequestRefused)
    assert error.param == "model"
    assert message in str(error)


ENCODER = {"bidirectional": True, "block_size": 20, "max_model_len": 20, "max_step_tokens": 20}


@pytest.mark.parametrize("depth", [1, 2])
def test_an_encoder_takes_each_text_whole(
    alone: Callable[..., Any], fake: SimpleNamespace, depth: int
) -> None:
    """More texts than fit into a step, or into the slots, of all lengths and several users."""
    world = alone(depth, **ENCODER, num_blocks=9, max_slots=3)
    ways = (Pooling.CLS, Pooling.MEAN, Pooling.ALL)
    texts = [
        world.arrive([(number + index) % 7 for index in range(length)], pooling=way, user=f"u{number % 3}")
        for number, length in enumerate((20, 1, 7, 19, 13, 20, 2, 2, 18))
        for way in ways
    ]
    world.run()
    assert world.embedded == {text: fake.embedding(text.request) for text in texts}
    assert world.worker.computed_tokens == 3 * 102  # each once, though some are alike
    assert world.scheduler.idle


@pytest.mark.parametrize("pooling", [Pooling.CLS, Pooling.ALL])
def test_a_text_of_an_encoder_starts_over_on_another_worker(
    alone: Callable[..., Any], fake: SimpleNamespace, pooling: Pooling
) -> None:
    world = alone(2, **ENCODER, num_blocks=9, max_slots=3)
    texts = [world.arrive([number] * 12, pooling=pooling) for number in range(5)]
    for _ in range(2):
        assert world.scheduler.plan() is not None  # in flight when the worker is lost
    world.fleet.remove_worker(world.scheduler)
    world.join()
    world.run()
    assert world.embedded == {text: fake.embedding(text.request) for text in texts}


def test_an_encoder_has_steps_for_its_longest_text(fake: SimpleNamespace) -> None:
    """Whatever token budget is set."""
    scheduler = Scheduler(fake.limits(**ENCODER | {"max_step_tokens": 64}), 8)
    assert scheduler.limits.max_step_tokens == 20
    for name in ("block_size", "max_step_tokens"):
        with pytest.raises(ValueError, match="must be one block and fit into one step"):
            fake.limits(**ENCODER | {name: 19})


@pytest.mark.parametrize(
    ("encoder", "length", "pooling", "param", "message"),
    [
        (True, 21, Pooling.MEAN, "prompt", "21 tokens > 20 maximum"),
        (True, 3, Pooling.NO_POOLING, "model", "embeds texts, and generates none"),
        (True, 3, Pooling.CLASSIFY, "model", "no classification head"),
        (False, 3, Pooling.CLS, "pooling", "sees no other token"),
    ],
)
def test_what_is_refused_by_encoders_and_decoders(
    fake: SimpleNamespace, encoder: bool, length: int, pooling: Pooling, param: str, message: str
) -> None:
    fleet = Fleet(8)
    fleet.add_worker(fake.limits(**ENCODER if encoder else {}))
    _, outcome = fleet.accept(fake.request([1] * length, pooling=pooling))
    ((_, error),) = outcome.failed
    assert isinstance(error, RequestRefused)
    assert error.param == param
    assert message in str(error)


def test_a_worker_that_forgets_an_embedding_is_given_up(alone: Callable[..., Any]) -> None:
    world = alone()
    world.arrive(TEXT, pooling=Pooling.MEAN)
    plan = world.scheduler.plan()
    with pytest.raises(WorkerFault, match="an embedding is missing"):
        world.scheduler.complete(StepResult(plan.step, []))


WIDE = {"embedding_size": NUMBERS // 10}
"""Vectors of ten tokens fill a message."""


@pytest.mark.parametrize("limits", [{}, ENCODER])
def test_a_step_brings_as_many_vectors_as_a_message_holds(
    alone: Callable[..., Any], fake: SimpleNamespace, limits: dict[str, Any]
) -> None:
    """Texts of a decoder are cut there; those of an encoder wait for another step. Others are not kept."""
    world = alone(**limits, **WIDE)
    lengths = (7, 6, 10, 1)
    texts = [world.arrive([number] * length, pooling=Pooling.ALL) for number, length in enumerate(lengths)]
    other = world.arrive([9] * 17, pooling=Pooling.LAST)
    vectors = list[int]()
    while (plan := world.scheduler.plan()) is not None:
        flight = world.scheduler.flights[-1]
        rows = zip(flight.sequences, plan.rows.counts, strict=True)
        counts = {sequence.group: count for sequence, count in rows}
        vectors.append(sum(count for group, count in counts.items() if group is not other))
        row_counts = list(counts.values())
        found = {
            row: bytes(4 * WIDE["embedding_size"] * count)
            for row, count in enumerate(row_counts)
            if row in flight.embedded
        }
        outcome = world.scheduler.complete(StepResult(plan.step, [], embeddings=found))
        for group, embedding in outcome.embedded:
            assert group is other or len(embedding) == 4 * WIDE["embedding_size"] * len(group.request.prompt)
            world.embedded[group] = embedding
    assert set(world.embedded) == {*texts, other}
    assert [count for count in vectors if count] == ([7, 6, 10, 1] if limits else [10, 10, 4])


def test_a_text_with_more_vectors_than_a_message_holds_is_refused(fake: SimpleNamespace) -> None:
    fleet = Fleet(1000)
    fleet.add_worker(fake.limits(**WIDE))
    _, outcome = fleet.accept(fake.request([1] * 10, pooling=Pooling.ALL))
    assert not outcome.failed
    _, outcome = fleet.accept(fake.request([1] * 11, pooling=Pooling.ALL))
    ((_, error),) = outcome.failed
    assert isinstance(error, RequestRefused)
    assert error.param == "prompt"
    assert "numbers for each of its 11 tokens is too long: it may have 10 tokens" in str(error)


@pytest.mark.parametrize("count", [0, 8, 10])
def test_a_worker_that_gives_another_number_of_vectors_is_given_up(
    alone: Callable[..., Any], count: int
) -> None:
    world = alone()
    world.arrive(TEXT, pooling=Pooling.ALL)
    plan = world.scheduler.plan()
    with pytest.raises(WorkerFault, match=f"{8 * count} bytes where 9 vectors were due"):
        world.scheduler.complete(StepResult(plan.step, [], embeddings={0: bytes(8 * count)}))


@pytest.mark.parametrize(
    ("limits", "pooling"),
    [
        (WIDE, Pooling.LAST),
        (WIDE, Pooling.MEAN),
        ({"num_labels": NUMBERS // 10}, Pooling.CLASSIFY),
        (WIDE | ENCODER, Pooling.CLS),
        (WIDE | ENCODER, Pooling.MEAN),
    ],
)
def test_a_step_completes_as_many_texts_as_a_message_holds(
    alone: Callable[..., Any], fake: SimpleNamespace, limits: dict[str, Any], pooling: Pooling
) -> None:
    """The last token of a text waits for the next step, or all of it if it cannot be cut."""
    world = alone(1, **{"num_blocks": 64, "max_slots": 32, "max_step_tokens": 64, **limits})
    texts = [world.arrive([number] * (1 + number % 2), pooling=pooling) for number in range(25)]
    completed = list[int]()
    while world.step():
        completed.append(len(world.embedded) - sum(completed))
    assert completed == [10, 10, 5, 0]  # at last a plan gives back slots
    assert world.embedded == {text: fake.embedding(text.request) for text in texts}
