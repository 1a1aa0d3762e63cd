"""The tables of sampling parameters: each value in the column of its name, flags for what is not off."""

import pytest
import torch

from gpu_worker.kernels.sampling import DRAWS, FILTERS, INTEGERS, NUMBERS, PENALTIES, RARE, RARE_FILTERS
from gpu_worker.sampling.parameters import SamplingTable
from proto.sampling import STAGED, Parameter, greedy
from proto.sampling_pb2 import FILTER, PENALTY, TEMPERATURE, SamplingParams
from proto.worker_pb2 import NewSlot

STAGES = {PENALTY: PENALTIES, FILTER: FILTERS, TEMPERATURE: 0}


def table() -> SamplingTable:
    return SamplingTable(torch.zeros((3, 9), dtype=torch.int32), vocab_size=50)


def other_than_default(parameter: Parameter) -> float:
    """A value at which the parameter is not off."""
    low, high = parameter.client.low, parameter.client.high
    middle = (low + high) // 2 if parameter.whole else (low + high) / 2
    return high if middle == parameter.default else middle


def test_every_value_is_in_the_column_of_its_name() -> None:
    given = {each.name: other_than_default(each) for each in STAGED}
    sampling = SamplingParams(**given, seed=2**64 - 5)
    slots = table()
    slots.set([NewSlot(slot=2, sampling=sampling, sequence_index=3, prompt_length=7, dropped_tokens=11)])
    expected = {**given, "seed": -5, "sequence_index": 3, "prompt_length": 7, "dropped_tokens": 11}
    numbers, integers = slots.state.numbers[2].tolist(), slots.state.integers[2].tolist()
    found = {**dict(zip(NUMBERS, numbers, strict=True)), **dict(zip(INTEGERS, integers, strict=True))}
    assert found == pytest.approx(expected)
    assert not slots.state.numbers[:2].any()


@pytest.mark.parametrize("temperature", [0, 0.5])
@pytest.mark.parametrize("parameter", STAGED, ids=lambda each: each.name)
def test_a_slot_is_flagged_for_what_is_not_off(parameter: Parameter, temperature: float) -> None:
    slots = table()
    given = {"temperature": temperature}
    if parameter.name != "temperature":
        given[parameter.name] = other_than_default(parameter)
    slots.set(
        [NewSlot(slot=0, sampling=greedy(temperature=temperature)), NewSlot(slot=1, sampling=greedy(**given))]
    )
    plain, asking = slots.state.flags[:2].tolist()
    drawing = DRAWS if temperature else 0
    changes = STAGES[parameter.stage] if temperature or parameter.stage == PENALTY else 0
    rare = RARE_FILTERS if temperature and parameter.name in RARE else 0
    assert (plain, asking) == (drawing, drawing | changes | rare)


def test_log_probabilities_are_wanted_or_not() -> None:
    slots = table()
    wanted = [greedy(), greedy(logprobs=0), greedy(logprobs=20)]
    slots.set([NewSlot(slot=slot, sampling=sampling) for slot, sampling in enumerate(wanted)])
    assert slots.state.logprobs.tolist() == [-1, 0, 20]


def test_alternatives_are_as_many_as_there_are_tokens_at_most() -> None:
    slots = table()
    wanted = [greedy(logprobs=49, prompt_logprobs=51), greedy(logprobs=2**31 - 1, prompt_logprobs=50)]
    slots.set([NewSlot(slot=slot, sampling=sampling) for slot, sampling in enumerate(wanted)])
    assert slots.state.logprobs.tolist()[:2] == [49, 50]
    assert slots.prompt_logprobs.tolist()[:2] == [50, 50]
