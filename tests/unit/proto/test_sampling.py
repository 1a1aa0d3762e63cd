"""What `proto/sampling.proto` declares of its parameters."""

import math
from typing import Any

import pytest

from proto.sampling import MAX_SEQUENCES, PARAMETERS, STAGED, Parameter, Range, greedy, problem_in
from proto.sampling_pb2 import BeamSearch, Dry, SamplingParams, StopConditions, TokenRules


def test_every_number_but_the_seed_is_declared() -> None:
    messages = (SamplingParams, TokenRules, Dry, StopConditions, BeamSearch)
    fields = [field.name for message in messages for field in message.DESCRIPTOR.fields]
    others = {"seed", "grammar", "stop_token_ids", "early_stopping", "rules"}
    others |= {*TokenRules.DESCRIPTOR.fields_by_name} - {"min_tokens"}
    others |= {"breaker_tokens", "breakers"}
    assert list(PARAMETERS) == [name for name in fields if name not in others]


@pytest.mark.parametrize("parameter", STAGED, ids=lambda each: each.name)
def test_what_shapes_a_draw_has_a_default_that_everyone_accepts(parameter: Parameter) -> None:
    assert parameter.default is not None
    assert parameter.default in parameter.range
    assert parameter.default in parameter.client
    assert parameter.model is None or parameter.default in parameter.model


def test_bounds() -> None:
    closed, half_open = Range(0, 2), Range(0, 1, above=True)
    assert [value in closed for value in (-1e-9, 0, 2, 2.0000001, math.nan)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert [value in half_open for value in (0, 1e-45, 1)] == [False, True, True]
    assert (closed.lowest, half_open.lowest) == (0, 5e-324)
    assert [closed.nearest(value) for value in (-1, 1, 3)] == [0, 1, 2]
    assert 0 < half_open.nearest(0) == half_open.nearest(1e-40) == 1e-30
    assert half_open.nearest(0.5) == 0.5


def test_the_nearest_number_above_a_bound_is_above_it_as_a_float32() -> None:
    for bound in (-2, 0, 0.1, 1, 1000):
        sent = SamplingParams(top_p=Range(bound, 2000, above=True).nearest(bound)).top_p
        assert sent > SamplingParams(top_p=bound).top_p


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("temperature", "at least 0, and finite"),
        ("top_p", "in (0, 1]"),
        ("presence_penalty", "in [-2, 2]"),
        ("repetition_penalty", "above 0, and finite"),
        ("max_tokens", "at least 0"),
        ("logprobs", "in [0, 2147483647]"),
    ],
)
def test_a_range_in_words(name: str, written: str) -> None:
    assert str(PARAMETERS[name].range) == written


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (greedy(), None),
        (greedy(top_p=0), ("top_p", "top_p must be in (0, 1], but is 0")),
        (
            greedy(temperature=math.nan),
            ("temperature", "temperature must be at least 0, and finite, but is nan"),
        ),
        (greedy(logprobs=2**31), ("logprobs", "logprobs must be in [0, 2147483647], but is 2147483648")),
        (BeamSearch(beam_width=1), ("beam_width", "beam_width must be in [2, 128], but is 1")),
        (StopConditions(), None),
    ],
)
def test_a_problem_is_one_sentence(message: Any, problem: tuple[str, str] | None) -> None:
    assert problem_in(message) == problem


def test_greedy() -> None:
    off = SamplingParams(top_p=1, repetition_penalty=1, typical_p=1, xtc_threshold=0.1, seed=3)
    assert greedy(seed=3) == off
    assert greedy(top_p=0.5).top_p == 0.5


def test_a_request_may_have_as_many_sequences_as_a_search_has_beams() -> None:
    assert problem_in(BeamSearch(beam_width=MAX_SEQUENCES)) is None
    assert problem_in(BeamSearch(beam_width=MAX_SEQUENCES + 1)) is not None
