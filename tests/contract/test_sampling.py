"""Each parameter that `proto/sampling.proto` declares has its declared range in every service.

The cases follow from the declarations: a new parameter is covered without a test of its own.
"""

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.api.common.body import parse
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.completions_schema import CompletionBody
from gateway.api.openai.translate import completion_requests
from gateway.errors import BadRequest
from gateway.http.caller import Caller
from gpu_worker.sampling.parameters import fault_in
from ops.runtime.limits import Limits
from proto.sampling import PARAMETERS, STAGED, Parameter, Range, greedy, problem_in
from proto.sampling_pb2 import BeamSearch, Dry, SamplingParams, StopConditions, TokenRules, TokenSequence
from proto.scheduler_pb2 import Start
from scheduler_svc.core.errors import RequestRefused
from scheduler_svc.intake import request_from
from tokenizer_svc.errors import ModelDirectoryError
from tokenizer_svc.model.defaults import read_defaults

EVERY = list(PARAMETERS.values())
CALLER = Caller(limits=Limits(answer_tokens=2**31 - 1, logprobs=-1))
OF_MODELS = [each for each in EVERY if each.model]
OF_RULES = [
    each for each in EVERY for message in (TokenRules, Dry) if each.name in message.DESCRIPTOR.fields_by_name
]
SAMPLING = [each for each in EVERY if each.name in SamplingParams.DESCRIPTOR.fields_by_name]


def named(parameters: list[Parameter]) -> Any:
    return pytest.mark.parametrize("parameter", parameters, ids=lambda each: each.name)


def edges(values: Range, parameter: Parameter, kind: Any) -> tuple[list[float], list[float]]:
    """The lowest and the highest number of a range, and their neighbours outside; `kind`: of its floats."""
    if parameter.whole:
        return [int(values.low), int(values.high)], [int(values.low) - 1, int(values.high) + 1]
    low, high = kind(values.low), kind(values.high)
    above, below = np.nextafter(low, kind(np.inf)), np.nextafter(low, kind(-np.inf))
    lowest, outside = (above, low) if values.above else (low, below)
    with np.errstate(over="ignore"):
        return [float(lowest), float(high)], [
            float(outside),
            float(np.nextafter(high, kind(np.inf))),
            math.nan,
        ]


def sent(parameter: Parameter) -> tuple[list[float], list[float]]:
    """What services accept from each other and what not, as far as the field's type can hold it."""
    inside, outside = edges(parameter.range, parameter, np.float32)
    return inside, [value for value in outside if not parameter.whole or 0 <= value < 2**32]


def start(name: str, value: float) -> Start:
    """A request of the scheduler's with one parameter of that value."""
    sampling, stop, beams = greedy(), StopConditions(), BeamSearch(beam_width=2)
    for message in (sampling, sampling.rules, sampling.rules.dry, stop, beams):
        if name in message.DESCRIPTOR.fields_by_name:
            setattr(message, name, value)
    searching = name in BeamSearch.DESCRIPTOR.fields_by_name
    tokens = struct.pack("<i", 1)
    return Start(prompt_tokens=tokens, sampling=sampling, stop=stop, n=1, beams=beams if searching else None)


@named(EVERY)
def test_the_scheduler(parameter: Parameter) -> None:
    inside, outside = sent(parameter)
    for value in inside:
        request_from(start(parameter.name, value), "")
    for value in outside:
        with pytest.raises(RequestRefused, match=rf"^{parameter.name} must be ") as refused:
            request_from(start(parameter.name, value), "")
        assert refused.value.param == parameter.name


@named(SAMPLING)
def test_the_worker(parameter: Parameter) -> None:
    inside, outside = sent(parameter)
    for value in inside:
        assert not fault_in(greedy(**{parameter.name: value}))
    for value in outside:
        assert fault_in(greedy(**{parameter.name: value})).startswith(f"{parameter.name} ")


@named(OF_RULES)
def test_the_worker_with_rules(parameter: Parameter) -> None:
    inside, outside = sent(parameter)
    for value in inside:
        assert not fault_in(start(parameter.name, value).sampling)
    for value in outside:
        assert fault_in(start(parameter.name, value).sampling).startswith(f"{parameter.name} ")


@pytest.mark.parametrize(
    ("rules", "param"),
    [
        (TokenRules(biased_tokens=[1]), "logit_bias"),
        (TokenRules(biased_tokens=[1, 1], biases=[1, 2]), "logit_bias"),
        (TokenRules(biased_tokens=[1], biases=[100.1]), "logit_bias"),
        (TokenRules(biased_tokens=[1], biases=[math.nan]), "logit_bias"),
        (TokenRules(biased_tokens=range(1025), biases=[1] * 1025), "logit_bias"),
        (TokenRules(allowed_tokens=range(4097)), "allowed_token_ids"),
        (TokenRules(end_tokens=range(1025)), "min_tokens"),
        (TokenRules(bad_words=[TokenSequence()]), "bad_words"),
        (TokenRules(bad_words=[TokenSequence(tokens=[1] * 8193)]), "bad_words"),
        (TokenRules(dry=Dry(breakers=[TokenSequence(tokens=[1])])), "dry_sequence_breakers"),
        (TokenRules(dry=Dry(breaker_tokens=range(65537))), "dry_sequence_breakers"),
    ],
)
def test_rules_that_no_service_takes(rules: TokenRules, param: str) -> None:
    asked = Start(prompt_tokens=struct.pack("<i", 1), sampling=greedy(rules=rules), n=1)
    with pytest.raises(RequestRefused, match=f"^{param} must ") as refused:
        request_from(asked, "")
    assert refused.value.param == param
    assert fault_in(greedy(rules=rules)).startswith(f"{param} must ")


def completion(name: str, value: float) -> CompletionBody:
    fields = {"model": "m", "prompt": "A", name: value}
    if name in BeamSearch.DESCRIPTOR.fields_by_name:
        fields["use_beam_search"] = True
    return parse(json.dumps(fields).encode(), CompletionBody)


@named(EVERY)
def test_the_gateway(parameter: Parameter) -> None:
    inside, outside = edges(parameter.client, parameter, np.float64)
    for value in inside:
        (request,) = completion_requests(completion(parameter.name, value), "r", CALLER)
        assert problem_in(request.sampling) is None
        assert not request.HasField("beams") or problem_in(request.beams) is None
    for value in outside:
        with pytest.raises(BadRequest) as refused:
            completion(parameter.name, value)
        assert math.isnan(value) or refused.value.param == parameter.name


@pytest.mark.parametrize(
    ("name", "parameter"), [("max_completion_tokens", "max_tokens"), ("top_logprobs", "logprobs")]
)
def test_names_that_conversations_have_for_them(name: str, parameter: str) -> None:
    fields = {"model": "m", "messages": [{"role": "user", "content": "A"}], "logprobs": True}
    inside, outside = edges(PARAMETERS[parameter].client, PARAMETERS[parameter], np.float64)
    for value in inside:
        parse(json.dumps({**fields, name: value}).encode(), ChatBody)
    for value in outside:
        with pytest.raises(BadRequest) as refused:
            parse(json.dumps({**fields, name: value}).encode(), ChatBody)
        assert refused.value.param == name


def test_a_request_that_says_nothing_has_the_defaults() -> None:
    (request,) = completion_requests(parse(b'{"model": "m", "prompt": "A"}', CompletionBody), "r", CALLER)
    for parameter in STAGED:
        # A default that is no float32, such as 0.1, is rounded on its way.
        as_sent = np.float32(parameter.default)
        assert getattr(request.sampling, parameter.name) == as_sent, parameter.name
    assert {each.name for each in STAGED if each.model} < {*request.left_out}


@named(OF_MODELS)
def test_the_defaults_of_a_model(parameter: Parameter) -> None:
    assert parameter.model is not None
    key = "max_new_tokens" if parameter.name == "max_tokens" else parameter.name
    inside, outside = edges(parameter.model, parameter, np.float64)
    for value in inside:
        assert read_defaults(Path("f"), {key: value}) == {parameter.name: value}
    for value in outside:
        with pytest.raises(ModelDirectoryError, match=key):
            read_defaults(Path("f"), {key: value})
