"""What is measured of an answer, on a clock that stands still."""

import json
from typing import Any

import pytest

from gateway.errors import BadRequest, GatewayError, Overloaded, ServerFault, Unavailable
from gateway.upstream.measures import MOST_VALUES, AnswerTimes, Measures, ignored_fields
from ops.runtime.metric_names import BY_NAME
from ops.runtime.metrics import Metrics, parse
from proto.sampling_pb2 import LENGTH, NOT_FINISHED, STOP
from proto.tokenizer_pb2 import TextRequest


class Rig:
    def __init__(self) -> None:
        self.now = 100.0
        self.metrics = Metrics()
        self.measures = Measures("m", self.metrics, lambda: self.now)

    def sums(self) -> dict[str, Any]:
        """Of each metric that is not 0: its value; of a histogram number and sum."""
        found: dict[str, Any] = {}
        for name, values in parse(self.metrics.snapshot(), BY_NAME).items():
            for labels, numbers in values.items():
                value = (sum(numbers[:-1]), round(numbers[-1], 6)) if BY_NAME[name].bounds else numbers[0]
                if value not in (0, (0, 0)):
                    found[":".join((name.partition(":")[2], *labels[1:]))] = value
        return found


def test_an_answer_of_two_sequences() -> None:
    rig = Rig()
    times = AnswerTimes(rig.measures, TextRequest(n=2, max_tokens=9, tenant="north"))
    rig.now += 2
    with times:
        times.call()
        times.prompt(50)
        rig.now += 1
        times.tokens(0, 1, NOT_FINISHED)
        rig.now += 0.5
        times.tokens(1, 2, NOT_FINISHED)
        times.tokens(0, 3, NOT_FINISHED)
        rig.now += 0.25
        times.call()
        times.tokens(0, 1, STOP)
        rig.now += 4
        times.tokens(1, 0, LENGTH)
    assert rig.sums() == {
        "prompt_tokens": 50,
        "generation_tokens": 7,
        "tenant_tokens:north": 57,
        "request_prompt_tokens": (1, 50),
        "request_params_n": (1, 2),
        "request_params_max_tokens": (1, 9),
        "time_to_first_token_seconds": (1, 3),
        "inter_token_latency_seconds": (2, 0.75),
        "request_time_per_output_token_seconds": (2, round(0.75 / 4, 6)),
        "request_generation_tokens": (2, 7),
        "request_max_num_generation_tokens": (1, 5),
        "request_success:stop": 1,
        "request_success:length": 1,
        "e2e_request_latency_seconds": (1, 7.75),
        "answers_resumed": 1,
    }


def test_an_answer_whose_prompt_was_too_long_at_first_is_not_resumed() -> None:
    rig = Rig()
    times = AnswerTimes(rig.measures, TextRequest(n=1))
    times.call()
    times.refused()
    times.call()
    assert rig.sums() == {}


def test_how_long_somebody_waited() -> None:
    rig = Rig()
    times = AnswerTimes(rig.measures, TextRequest(n=2))
    rig.now += 2
    assert (times.first_chunk, times.longest_wait, times.output_tokens) == (None, 2, 0)
    for index, tokens in ((1, 1), (0, 2)):
        rig.now += 1
        times.tokens(index, tokens, NOT_FINISHED)
    assert (times.first_chunk, times.longest_wait, times.output_tokens) == (3, 3, 3)
    rig.now += 2
    times.tokens(1, 0, STOP)  # no token: the wait goes on
    rig.now += 2
    assert times.longest_wait == 4


def test_what_is_missing_failed_or_is_not_wanted() -> None:
    rig = Rig()
    with pytest.raises(ValueError, match="broken"), AnswerTimes(rig.measures, TextRequest(n=3)) as _:
        raise ValueError("broken")
    times = AnswerTimes(rig.measures, TextRequest(n=2))
    times.tokens(0, 1, STOP)
    with pytest.raises(GeneratorExit), times:  # the client has left
        raise GeneratorExit
    found = rig.sums()
    assert found["request_success:error"] == 3
    assert found["request_success:abort"] == 1
    assert "e2e_request_latency_seconds" not in found


def test_what_its_client_has_to_mend_is_no_error_of_the_deployment() -> None:
    rig = Rig()
    for error in (BadRequest("too long"), Overloaded("later"), ServerFault("1"), Unavailable("no worker")):
        with pytest.raises(GatewayError), AnswerTimes(rig.measures, TextRequest(n=1)):
            raise error
    assert rig.sums() == {"request_success:error": 2}


def test_tenants_without_an_end_become_one() -> None:
    rig = Rig()
    for number in range(3 * MOST_VALUES):
        rig.measures.tokens_of(f"tenant-{number}").add(2)
    rig.measures.tokens_of("tenant-1").add(5)
    found = rig.sums()
    assert found["tenant_tokens:other"] == 4 * MOST_VALUES
    assert found["tenant_tokens:tenant-1"] == 7
    assert len(json.loads(rig.metrics.snapshot())) < MOST_VALUES + 50


def test_names_of_fields_without_an_end_become_one() -> None:
    rig = Rig()
    fields = ignored_fields(rig.metrics)
    for number in range(3 * MOST_VALUES):
        fields.of(f"field-{number}").add()
    values = parse(rig.metrics.snapshot(), BY_NAME)["quire:fields_ignored"]
    assert len(values) == MOST_VALUES + 1
    assert (values["field-7",], values["other",]) == ([1.0], [2.0 * MOST_VALUES])
