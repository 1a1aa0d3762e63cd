"""Random programs, drawn by hypothesis and from seeds: see `tests/support/programs.py` for what must hold."""

from collections.abc import Iterator
from itertools import count
from math import inf
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_svc.core import grammars, policies, shares
from scheduler_svc.core.alternatives import MOST
from scheduler_svc.core.capabilities import partial_blocks
from scheduler_svc.core.policies import POLICIES
from scheduler_svc.core.request import Pooling
from scheduler_svc.core.sequence import SequenceGroup
from tests.support.programs import ADAPTERS, World, busy_program, play


def consistent(limits: dict[str, int]) -> dict[str, int]:
    """Limits that a worker may have."""
    recurrent = limits["recurrent"] and not limits["window"]
    whole = limits["whole_images"] and not recurrent
    if whole:  # an image has 8 tokens at most
        limits["max_step_tokens"] += 8 + limits["max_slots"]
    return limits | {"recurrent": recurrent, "whole_images": whole}


LIMITS = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(4, 24),
        "block_size": st.sampled_from([1, 2, 4, 8]),
        "max_slots": st.integers(1, 6),
        "max_model_len": st.integers(8, 48),
        "max_step_tokens": st.integers(1, 24),
        "host_blocks": st.sampled_from([0, 1, 3, 8, 24, 60]),
        "window": st.sampled_from([0, 0, 0, 1, 2, 5, 12]),
        "recurrent": st.booleans(),
        "whole_images": st.booleans(),
    }
).map(consistent)
# Few different tokens, so that prompts share prefixes.
PROMPTS = st.one_of(
    st.lists(st.integers(0, 2), min_size=1, max_size=24),
    st.integers(1, 30).map(lambda length: [1] * length),
)
ARRIVALS = st.fixed_dictionaries(
    {
        "prompt": PROMPTS,
        "seed": st.integers(0, 3),
        "max_tokens": st.integers(0, 20),
        "n": st.sampled_from([1, 1, 1, 2, 3]),
        "beams": st.sampled_from([0, 0, 0, 2, 3]),
        "stop_token_ids": st.frozensets(st.integers(0, 38), max_size=3),
        "salt": st.sampled_from(["", "", "tenant"]),
        "adapter": st.sampled_from(["", "", *ADAPTERS]),
        "tenant": st.sampled_from(["", "a", "b"]),
        "user": st.sampled_from(["", "", "x"]),
        "priority": st.integers(-1, 1),
        "deadline": st.sampled_from([1.0, 2.0, 3.0, inf]),
        "rolling": st.sampled_from([False, False, True]),
        "scores_prompt": st.sampled_from([False, False, True]),
        "scored_tokens": st.sampled_from([0, 0, 1, 5]),
        "alternatives": st.sampled_from([0, 0, 0, MOST // 3, MOST]),
        "prompt_alternatives": st.sampled_from([0, 0, MOST // 3, MOST]),
        "pooling": st.sampled_from([*[Pooling.NO_POOLING] * 4, Pooling.MEAN, Pooling.LAST, Pooling.ALL]),
        "grammar": st.sampled_from([b"", b"", b"x", b"y", b"z"]),
        "images": st.lists(st.tuples(st.integers(0, 6), st.integers(1, 8), st.integers(0, 2)), max_size=3),
    }
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), ARRIVALS),
        st.tuples(st.just("arrive"), ARRIVALS),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("lose"), st.integers(0, 1)),
        st.tuples(st.just("join"), st.none()),
    ),
    min_size=10,
    max_size=60,
)


@pytest.fixture(scope="module", autouse=True)
def small_scale() -> Iterator[None]:
    """Answers are short here; so is a turn, but no shorter than the plans that are under way at once. There
    are few grammars; so a worker keeps fewer. Blocks are short, and still named in part."""
    usual = policies.QUANTUM, shares.TURN, grammars.MOST_IDLE, partial_blocks.STEPS
    policies.QUANTUM = shares.TURN = 4
    grammars.MOST_IDLE = 1
    partial_blocks.STEPS = 0
    yield
    policies.QUANTUM, shares.TURN, grammars.MOST_IDLE, partial_blocks.STEPS = usual


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    limits=LIMITS,
    depth=st.sampled_from([1, 2, 2, 3]),
    policy=st.sampled_from(list(POLICIES)),
    speculation=st.sampled_from(["off", "off", "ngram", "draft"]),
    events=EVENTS,
)
def test_every_request_gets_what_it_gets_alone(
    fake: SimpleNamespace,
    limits: dict[str, int],
    depth: int,
    policy: str,
    speculation: str,
    events: list[tuple[str, object]],
) -> None:
    world = World(fake, limits, depth, policy, speculation)
    world.join(None)
    play(world, events)


# Each seed with three of the policies, each policy with the same number of seeds.
@pytest.mark.parametrize(
    ("seed", "policy"), [(number // 3, list(POLICIES)[number % len(POLICIES)]) for number in range(28)]
)
def test_planning_ahead_gives_what_lock_step_gives(fake: SimpleNamespace, seed: int, policy: str) -> None:
    random = Random(seed)
    block_size = random.choice([1, 2, 4, 8])
    limits = {
        "num_blocks": random.choice([64, 128, 320]) // block_size,
        "block_size": block_size,
        "max_slots": random.choice([2, 4, 12]),
        "max_step_tokens": random.choice([3, 16, 64]),
        "host_blocks": random.choice([0, 4, 40]),
        "window": random.choice([0, 0, 3, 16]),
    }
    limits["recurrent"] = not limits["window"] and seed % 2
    limits["whole_images"] = not limits["recurrent"] and limits["max_step_tokens"] == 64
    events = busy_program(random, fake.POISON)
    ways = ((1, "off"), (2, "draft"), (3, "off"))
    references: dict[tuple[str, int, int], list[int]] = {}
    worlds = [World(fake, limits, depth, policy, speculation, references) for depth, speculation in ways]
    for world in worlds:
        world.join(None)
        play(world, events)
    lock_step, *ahead = (world.whole() for world in worlds)
    for whole in ahead:
        both = lock_step.keys() & whole.keys()
        assert both
        assert {key: lock_step[key] for key in both} == {key: whole[key] for key in both}


@pytest.mark.parametrize("seed", range(40))
def test_workers_may_be_of_any_size(fake: SimpleNamespace, seed: int) -> None:
    random = Random(seed)
    limits = {"num_blocks": 128, "block_size": 2, "window": random.choice([0, 0, 3, 16]), "max_model_len": 48}
    events = busy_program(random, fake.POISON)
    for place in sorted(random.sample(range(len(events)), 6), reverse=True):
        events.insert(place, (random.choice(["lose", "join"]), random.randrange(2)))
    policy, speculation = random.choice(list(POLICIES)), random.choice(["off", "ngram", "draft"])
    world = World(fake, limits, random.choice([1, 2, 4]), policy, speculation, sizes=random)
    world.join(None)
    play(world, events)


@pytest.mark.parametrize("seed", range(20))
def test_an_encoder_takes_each_text_whole(fake: SimpleNamespace, seed: int) -> None:
    """What is to be generated is refused."""
    random = Random(seed)
    longest, slots = random.choice([12, 31]), random.choice([1, 3, 8])
    limits = {
        "bidirectional": True,
        "max_model_len": longest,
        "block_size": longest,
        "max_step_tokens": longest + random.choice([0, 5, 40]),
        "max_slots": slots,
        "num_blocks": 3 * slots,
    }
    world = World(fake, limits, random.choice([1, 2, 3]), random.choice(list(POLICIES)))
    world.join(None)
    play(world, busy_program(random, fake.POISON))
    assert {"embedded", "RequestRefused"} <= set(world.ended.values())


@pytest.mark.parametrize("seed", range(10))
def test_all_requests_end_while_new_users_keep_coming(fake: SimpleNamespace, seed: int) -> None:
    """Workers are lost meanwhile. Two users ask for one thing after the other."""
    random = Random(seed)
    limits = {
        "num_blocks": random.choice([16, 40]),
        "max_slots": random.choice([2, 3]),
        "window": random.choice([0, 0, 5]),
        "whole_images": random.random() < 0.3,
    }
    limits["recurrent"] = not limits["window"] and not limits["whole_images"] and random.random() < 0.5
    policy, speculation = random.choice(list(POLICIES)), random.choice(["off", "ngram", "draft"])
    world = World(fake, limits, random.choice([1, 2, 3]), policy, speculation)
    world.join(None)
    programs = (busy_program(random, fake.POISON) for _ in count())
    arrivals = (fields for program in programs for name, fields in program if name == "arrive")
    of_one_tenant = random.random() < 0.5

    def ask(name: str) -> SequenceGroup:
        fields = next(arrivals)
        few = {each: min(2, fields[each]) for each in ("n", "beams")} | {"max_tokens": fields["seed"] % 9 + 1}
        who = {"tenant": "" if of_one_tenant else name, "user": name}
        world.arrive({**fields, **few, **who, "rolling": False, "known": []})
        return list(world.requests)[-1]

    steady: dict[str, tuple[SequenceGroup, int]] = {}
    for step in range(400):
        for name in ("one", "other"):
            if name not in steady or steady[name][0] in world.ended:
                steady[name] = ask(name), step
            assert step - steady[name][1] < 300, name
        waiting = [group for group in world.requests if group not in world.ended and _waits(group)]
        for number in range(8 - len(waiting)):
            ask(f"new {step} {number}")
        world.step()
        if random.random() < 0.01:
            world.join(None)
            world.lose(0)
            world.join(None)
    world.finish()


def _waits(group: SequenceGroup) -> bool:
    return any(sequence.waits for sequence in group.sequences)
