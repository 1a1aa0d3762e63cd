"""The sampling parameters of every slot: tables on the device, on the host flags of what a slot asks for."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.sampling import (
    DRAWS,
    FILTERS,
    INTEGERS,
    NUMBERS,
    PENALTIES,
    RARE,
    RARE_FILTERS,
    SamplingState,
)
from gpu_worker.machine.transfer import to_device
from proto.sampling import STAGED, greedy, problem_in
from proto.sampling_pb2 import FILTER, PENALTY, SamplingParams
from proto.worker_pb2 import NewSlot


class SamplingTable:
    """Slot-indexed sampling parameters; `SamplingState` says what is where."""

    def __init__(self, tokens: Tensor, vocab_size: int) -> None:
        """`tokens`: int32 [slots, max_model_len + 1], the tokens of each slot, on the device."""
        self._vocab_size = vocab_size
        slots, device = len(tokens), tokens.device
        self.state = SamplingState(
            tokens,
            numbers=torch.zeros((slots, len(NUMBERS)), device=device),
            integers=torch.zeros((slots, len(INTEGERS)), dtype=torch.int64, device=device),
            flags=np.zeros(slots, np.uint8),
            logprobs=np.full(slots, -1, np.int32),
        )
        """What back ends read."""
        self.candidates = np.zeros(slots, np.int32)
        """Most likely tokens to report of each slot of a beam, of which the worker keeps none; 0: no beam."""
        self.prompt_logprobs = np.full(slots, -1, np.int32)
        """Alternatives wanted with each token of the prompt of each slot; -1: no log probabilities of it."""

    def set(self, news: Sequence[NewSlot]) -> None:
        """Take over the parameters of new sequences, in which `fault_in` has found nothing wrong."""
        asking, numbers, integers = [], [], []
        for new in news:
            slot, params = new.slot, new.sampling
            self.state.flags[slot] = flags = _flags(params)
            self.state.logprobs[slot] = self._alternatives(params, "logprobs")
            self.candidates[slot] = new.candidates
            self.prompt_logprobs[slot] = self._alternatives(params, "prompt_logprobs")
            if flags:
                asking.append(slot)
                numbers.append([getattr(params, name) for name in NUMBERS])
                integers.append(
                    [_int64(getattr(params if name in _SAMPLED else new, name)) for name in INTEGERS]
                )
        if asking:
            device = self.state.tokens.device
            slots = to_device(torch.tensor(asking), device)
            self.state.numbers[slots] = to_device(torch.tensor(numbers), device)
            self.state.integers[slots] = to_device(torch.tensor(integers), device)

    def _alternatives(self, params: SamplingParams, name: str) -> int:
        """Alternatives that are wanted with each token; -1: no log probabilities at all."""
        return min(getattr(params, name), self._vocab_size) if params.HasField(name) else -1


_SAMPLED = frozenset(SamplingParams.DESCRIPTOR.fields_by_name)
_OFF = greedy()
_FLAGGED: Mapping[int, int] = {PENALTY: PENALTIES, FILTER: FILTERS}
_SWITCHES = [
    (
        each.name,
        getattr(_OFF, each.name),
        _FLAGGED[each.stage] | (RARE_FILTERS if each.name in RARE else 0),
    )
    for each in STAGED
    if each.stage in _FLAGGED
]
"""Filters and penalties: the name, the value at which it is off, and the flags of a slot that has another."""


def _flags(params: SamplingParams) -> int:
    """DRAWS | FILTERS | PENALTIES | RARE_FILTERS, of those that change the choice."""
    flags = DRAWS
    for name, off, flag in _SWITCHES:
        if getattr(params, name) != off:
            flags |= flag
    return flags if params.temperature > 0 else flags & PENALTIES


def _int64(value: int) -> int:
    """The bits of a uint64 as int64."""
    return value - (1 << 64) if value >> 63 else value


def fault_in(params: SamplingParams) -> str:
    """What is wrong with sampling parameters; empty if nothing is."""
    problem = problem_in(params)
    return problem.message if problem else ""
