"""Requests with images: what workers are told of them, and whose blocks they find.

That all get the tokens that they get alone is shown by `test_random_programs.py`, whose programs have images.
"""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_svc.core.capabilities import partial_blocks
from scheduler_svc.core.errors import RequestRefused
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.images import Image
from scheduler_svc.core.plan import NewSlot
from scheduler_svc.core.request import SoFar
from scheduler_svc.core.sequence import State
from scheduler_svc.core.suspicion import Loss
from scheduler_svc.recording.snapshot import decode, take

Make = Callable[..., Any]


def image(position: int, tokens: int, shows: int = 0) -> Image:
    return Image(position, tokens, 1, tokens, bytes([shows]) * 32, f"image {shows}")


def told(one: Any) -> list[NewSlot]:
    """Run to the end; every slot that the worker has been told of."""
    slots: list[NewSlot] = []
    while (plan := one.scheduler.plan()) is not None:
        slots += plan.new_slots
        one.complete(plan)
        one.look()
    return slots


def test_equal_images_at_equal_places_share_blocks_and_others_do_not(bench: Make) -> None:
    one, prompt = bench(images=True), [1] * 13
    cached = []
    for images in (
        (image(2, 6),),
        (image(2, 6),),
        (image(2, 6, shows=1),),
        (image(3, 6),),
        (image(2, 6), image(9, 1)),
        (),
        (image(2, 6), image(9, 1, shows=1)),
    ):
        group = one.arrive(prompt, images=images, max_tokens=2)
        one.run()
        cached.append(group.cached_tokens)
    assert cached == [0, 12, 0, 0, 8, 0, 8]


def test_nobody_waits_for_the_blocks_of_another_image(bench: Make) -> None:
    one = bench(max_step_tokens=40, images=True)
    groups = [one.arrive([1] * 16, images=(image(0, 8, shows),)) for shows in (0, 1, 0)]
    one.plan()
    assert [group.sequences[0].state is State.WAITING for group in groups] == [False, False, True]
    assert one.scheduler.state.unfinished.followers() == groups[2].sequences


@pytest.mark.parametrize("host_blocks", [0, 40])
def test_who_was_preempted_brings_its_images_again(bench: Make, host_blocks: int) -> None:
    one = bench(num_blocks=9, block_size=4, max_slots=2, images=True, host_blocks=host_blocks)
    images = (image(1, 3), image(5, 4, shows=1))
    groups = [one.arrive([number] * 11, images=images, max_tokens=16) for number in range(2)]
    slots = told(one)
    assert len(slots) > 2, "one was preempted"
    assert all(new.images == images for new in slots)
    for group in groups:
        output = list(group.sequences[0].tokens[11:])
        assert output == one.fake.reference(group.request, 0, 36)


def test_another_worker_is_told_of_the_images(alone: Make) -> None:
    one = alone(images=True)
    group = one.arrive([1] * 12, images=(image(2, 7),), max_tokens=9)
    for _ in range(3):
        one.step()
    assert one.given[group][0]
    one.fleet.remove_worker(one.scheduler)
    one.join()
    plan = one.scheduler.plan()
    known = 12 + len(one.given[group][0])
    assert [(new.images, len(new.tokens)) for new in plan.new_slots] == [((image(2, 7),), known)]
    one.results.append(one.worker.execute(plan))
    one.run()
    one.check(group)


@pytest.mark.parametrize("fields", [{"n": 3}, {"beams": 3, "n": 2}])
def test_forks_have_the_images_of_their_parents(bench: Make, fields: dict[str, int]) -> None:
    one = bench(images=True, num_blocks=40)
    images = (image(3, 5),)
    group = one.arrive([1] * 8, images=images, max_tokens=6, **fields)
    slots = told(one)
    assert [new.images for new in slots if not new.forked_tokens] == [images]
    forks = [new for new in slots if new.forked_tokens]
    assert len(forks) >= 2
    assert not any(new.images for new in forks)
    if "beams" not in fields:
        for sequence in group.sequences:
            assert list(sequence.tokens[8:]) == one.fake.reference(group.request, sequence.index, 64)


def test_drafts_beside_images(bench: Make) -> None:
    """What is predicted holds, and the answer is the same."""
    one, images = bench(images=True), (image(0, 4),)
    one.fleet.remove_worker(one.scheduler)
    one.fleet = Fleet(1000, speculation="ngram")
    one.scheduler, _ = one.fleet.add_worker(one.fake.limits(images=True))
    plain = one.arrive([1] * 6, images=images, max_tokens=12)
    one.run()
    answer = plain.sequences[0].tokens[6:]
    group = one.arrive([1] * 6, images=images, max_tokens=12, predicted=answer)
    assert one.run() < 12
    assert group.sequences[0].tokens[6:] == answer


def test_partial_blocks_know_images(alone: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_blocks, "STEPS", 0)
    one, stops = alone(1, recurrent=True, block_size=32, images=True), frozenset({30})
    prompt = [1, 2, 2, 2, 30, 4, 5]
    cached = []
    for images in ((image(1, 3),), (image(1, 3, shows=1),), (image(1, 3),), (), (image(1, 3), image(5, 1))):
        group = one.arrive(prompt, images=images, stop_token_ids=stops, max_tokens=2)
        one.run()
        one.check(group)
        cached.append(group.cached_tokens)
    assert cached == [0, 0, 5, 0, 5]


def test_a_prompt_goes_where_its_images_are_cached(alone: Make) -> None:
    one = alone(images=True)
    one.fleet.add_worker(one.limits)
    first, second = one.fleet.schedulers
    workers = {first: one.worker, second: one.fake.StrictWorker(second.limits)}
    homes = []
    for shows in (0, 1, 0, 1):
        # As one that is under way already, so that the other worker is the one with less to do.
        busy = one.fleet.accept(one.fake.request([9], "busy"))[0] if len(homes) == 1 else None
        request = one.fake.request([1] * 12, images=(image(2, 8, shows),), max_tokens=1)
        group, _ = one.fleet.accept(request)
        homes.append(one.fleet.home(group))
        if busy is not None:
            one.fleet.cancel(busy)
        while (plan := homes[-1].plan()) is not None:
            one.fleet.settle(homes[-1], homes[-1].complete(workers[homes[-1]].execute(plan)))
            for number in workers[homes[-1]].look():
                homes[-1].seen(number)
    assert homes[0] is not homes[1]
    assert homes[2:] == homes[:2]


def test_a_recording_has_images(bench: Make) -> None:
    one = bench(images=True)
    group = one.arrive([1] * 9, images=(image(2, 4), image(7, 1, shows=1)))
    copy = decode(take(group).encode())
    assert copy.request.images == group.request.images
    assert copy.needs == group.needs == ("", "", True)


def test_answers_go_on_while_images_are_looked_at(bench: Make) -> None:
    one = bench(images=True, max_step_tokens=20)
    answer = one.arrive([5] * 4, max_tokens=30)
    one.step()
    asks = one.arrive([1] * 12, images=(image(4, 3), image(9, 2)), max_tokens=3)
    plan = one.step()
    assert list(plan.rows.counts) == [1, 4], "what is before the first image"
    for _ in range(3):
        assert list(one.step().rows.counts) == [1]
    assert not asks.sequences[0].output_tokens
    one.look()
    assert list(one.step().rows.counts) == [1, 8]
    one.run()
    for group in (answer, asks):
        longest = one.scheduler.limits.max_length
        found = list(group.sequences[0].tokens[len(group.request.prompt) :])
        assert found == one.fake.reference(group.request, 0, longest)


def test_an_image_at_the_beginning_needs_a_plan_without_rows(bench: Make) -> None:
    one = bench(images=True)
    one.arrive([1] * 9, images=(image(0, 8),), max_tokens=2)
    plan = one.step()
    assert (len(plan.new_slots), list(plan.rows.counts)) == (1, [])
    assert one.scheduler.plan() is None
    assert not one.scheduler.idle
    one.look()
    assert list(one.step().rows.counts) == [9]


def test_who_leaves_while_its_images_are_looked_at_is_forgotten(bench: Make) -> None:
    one = bench(images=True)
    gone = one.arrive([1] * 9, images=(image(2, 4),))
    one.step()
    one.scheduler.cancel(gone)
    one.look()
    stays = one.arrive([2] * 9, images=(image(2, 4),), max_tokens=2)
    one.run()
    assert stays.sequences[0].state is State.DONE


def test_an_image_that_is_looked_at_may_be_the_reason_for_a_loss(bench: Make) -> None:
    one = bench(images=True)
    group = one.arrive([1] * 9, images=(image(2, 4),))
    one.step()
    assert not one.scheduler.in_flight
    assert list(one.scheduler.suspects(Loss.DEATH)) == [group]


def test_blocks_of_an_image_for_which_there_are_too_few_are_told(bench: Make) -> None:
    """An image is computed as a whole. It gets the block that is free, and the others when they are."""
    one = bench(num_blocks=6, max_step_tokens=20, images=True, whole_images=True)
    asks = one.arrive([1] * 12, images=(image(4, 8),), max_tokens=1)
    answer = one.arrive([2] * 4, max_tokens=12)
    pool, (answering,) = one.scheduler.state.batch.pool, answer.sequences
    plan = one.plan()
    while not answering.about_to_end:
        one.complete(plan)
        plan = one.plan()
    assert pool.free_blocks == 1
    one.look()
    (more,) = one.plan().table_appends.blocks
    assert asks.sequences[0].table.blocks[1:] == [more]
    assert not pool.free_blocks
    one.complete(plan)
    one.complete(one.scheduler.flights[0].plan)
    one.run()
    for group in (asks, answer):
        output = list(group.sequences[0].tokens[len(group.request.prompt) :])
        assert output == one.fake.reference(group.request, 0, 24)


def test_decodes_leave_room_for_an_image_that_is_as_long_as_a_step(bench: Make) -> None:
    """A scheduler may be told to make shorter steps than the worker allows."""
    one = bench(20, num_blocks=200, max_slots=12, max_step_tokens=40, images=True, whole_images=True)
    answers = [one.arrive([number] * 3, max_tokens=40) for number in range(10)]
    for _ in range(4):
        one.step()
    asks = [one.arrive([seed] * 16, images=(image(1, 15),), max_tokens=2, seed=seed) for seed in (11, 12)]
    for _ in range(20):
        one.step()
        one.look()
    assert not any(group.unfinished for group in asks)
    assert all(group.sequences[0].output_tokens > 15 for group in answers)
    one.run()
    for group in (*asks, *answers):
        output = list(group.sequences[0].tokens[len(group.request.prompt) :])
        assert output == one.fake.reference(group.request, 0, 64)


def test_decodes_leave_room_for_the_image_that_is_computed_next(bench: Make) -> None:
    """Also where its tenant came later. Those decodes sit out that get blocks last."""
    limits = {"num_blocks": 200, "max_slots": 14, "max_step_tokens": 40, "images": True, "whole_images": True}
    one = bench(20, **limits)
    for number in range(10):
        one.arrive([number] * 3, tenant="a", max_tokens=40)
    steady = one.arrive([10] * 3, tenant="b", max_tokens=40)
    for _ in range(4):
        one.step()
    later = one.arrive([11] * 12, tenant="a", images=(image(1, 11),), max_tokens=1)
    first = one.arrive([12] * 16, tenant="b", images=(image(1, 15),), max_tokens=1)
    while first.unfinished:
        before = steady.sequences[0].output_tokens
        one.step()
        one.look()
        assert later.unfinished
        assert steady.sequences[0].output_tokens > before
    one.run()
    assert not later.unfinished


def test_no_room_is_left_to_an_image_whose_end_waits_for_a_grammar(bench: Make) -> None:
    limits = {"num_blocks": 200, "max_slots": 12, "max_step_tokens": 40, "images": True, "whole_images": True}
    one = bench(20, **limits)
    for number in range(10):
        one.arrive([number] * 3, max_tokens=40)
    fields: list[tuple[int, dict[str, Any]]] = [(11, {"grammar": b"x"}), (12, {})]
    waits, asks = (
        one.arrive([seed] * 16, images=(image(1, 15),), max_tokens=2, **each) for seed, each in fields
    )
    for _ in range(20):
        one.step()
        one.look()
    assert (waits.sequences[0].planned, asks.unfinished) == (15, 0)


def test_decodes_leave_room_for_an_image_that_finds_blocks(bench: Make) -> None:
    """The first one lacks blocks: room would be of no use to it."""
    one = bench(12, num_blocks=24, max_slots=6, max_step_tokens=12, images=True, whole_images=True)
    for number in range(4):
        one.arrive([number] * 4, max_tokens=30)
    for _ in range(2):
        one.step()
    lacks = one.arrive([4] * 13, images=(image(1, 12),), max_tokens=1)
    fits = one.arrive([5] * 10, images=(image(1, 9),), max_tokens=1)
    pool = one.scheduler.state.batch.pool
    while pool.free_blocks > 2:
        one.step()
    one.look()
    for _ in range(2):
        one.step()
    assert (lacks.unfinished, fits.unfinished) == (1, 0)
    one.run()


def test_a_whole_image_goes_where_a_step_has_room_for_it(fake: Any) -> None:
    """A worker with shorter steps would give it a slot again and again."""
    fleet = Fleet(64)
    limits = {"images": True, "whole_images": True, "num_blocks": 32}
    longer, _ = fleet.add_worker(fake.limits(max_step_tokens=20, max_model_len=128, **limits))
    shorter, _ = fleet.add_worker(fake.limits(max_step_tokens=10, **limits))
    for number, (tokens, expected) in enumerate([(12, longer), (12, longer), (5, shorter), (12, longer)]):
        group, outcome = fleet.accept(fake.request([number] * 20, max_tokens=1, images=(image(2, tokens),)))
        assert (outcome.failed, fleet.home(group)) == ([], expected)
    fleet.remove_worker(longer)
    assert len(fleet.stranded()) == 3


def test_samples_that_compute_the_end_of_a_cached_image_wait_until_it_is_seen(bench: Make) -> None:
    """After a loss the first sample may have its prompt and more in the cache."""
    one = bench(num_blocks=64, max_slots=8, images=True)
    fields = {"n": 2, "max_tokens": 20, "images": (image(6, 6),)}
    first = one.arrive([1] * 12, **fields)
    one.run()
    tokens = first.sequences[0].tokens[12:18]
    group = one.arrive([1] * 12, resumed=(SoFar(0, tokens, finished=False),), **fields)
    (leader,) = one.step().new_slots
    assert leader.sight, "the other sample computes its last token again"
    assert one.scheduler.plan() is None
    one.look()
    one.step()
    assert one.step().new_slots[0].forked_tokens == 11
    one.run()
    for sequence in group.sequences:
        assert list(sequence.tokens[12:]) == one.fake.reference(group.request, sequence.index, 64)


def test_samples_of_a_single_image_are_seen_each(bench: Make) -> None:
    """A prompt of one token leaves nothing that they could share."""
    one = bench(images=True)
    group = one.arrive([1], n=3, max_tokens=3, images=(image(0, 1),))
    one.run()
    for sequence in group.sequences:
        assert list(sequence.tokens[1:]) == one.fake.reference(group.request, sequence.index, 64)


def test_a_whole_image_is_not_refused_because_of_a_worker_with_shorter_steps(fake: Any) -> None:
    """Even if that one holds more tokens. An answer that waits for longer steps keeps its limit."""
    fleet = Fleet(64)
    limits = {"images": True, "whole_images": True, "num_blocks": 32}
    longer, _ = fleet.add_worker(fake.limits(max_step_tokens=20, max_model_len=64, **limits))
    fleet.add_worker(fake.limits(max_step_tokens=10, max_model_len=128, **limits))
    group, outcome = fleet.accept(fake.request([1] * 20, images=(image(2, 12),)))
    assert (outcome.failed, fleet.home(group), group.limit) == ([], longer, 64)
    fleet.remove_worker(longer)
    assert (fleet.stranded(), group.limit) == ([group], 64)
    _, outcome = fleet.accept(fake.request([2] * 20, images=(image(2, 12),)))
    assert [type(error) for _, error in outcome.failed] == [RequestRefused]


@pytest.mark.parametrize(("tokens", "fits"), [(3, True), (4, False)])
def test_a_whole_image_must_fit_into_memory_beside_the_window(bench: Make, tokens: int, fits: bool) -> None:
    """Otherwise it would wait for ever for blocks that the window keeps."""
    limits = {"num_blocks": 8, "block_size": 1, "window": 5, "whole_images": True, "images": True}
    one = bench(24, max_step_tokens=24, max_model_len=16, **limits)
    request = one.fake.request([1] * 13, images=(image(5, tokens),), max_tokens=2)
    group, outcome = one.fleet.accept(request)
    assert [type(error) for _, error in outcome.failed] == ([] if fits else [RequestRefused])
    if fits:
        one.run()
        assert list(group.sequences[0].tokens[13:]) == one.fake.reference(request, 0, 16, 5)
