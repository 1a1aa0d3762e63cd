"""The sampling parameters of every slot: tables on the device, on the host flags of what a slot asks for."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.sampling import DRAWS, FILTERS, INTEGERS, NUMBERS, PENALTIES, SamplingState
from gpu_worker.machine.transfer import to_device
from proto.sampling import STAGED, greedy, problem_in
from proto.sampling_pb2 import FILTER, PENALTY, SamplingParams
from proto.worker_pb2 import NewSlot


class SamplingTable:
    """Slot-indexed sampling parameters; `SamplingState` says what is where."""

    def __init__(self, tokens: Tensor) -> None:
        """`tokens`: int32 [slots, max_model_len + 1], the tokens of each slot, on the device."""
        slots, device = len(tokens), tokens.device
        self.state = SamplingState(
            tokens,
            numbers=torch.zeros((slots, len(NUMBERS)), device=device),
            integers=torch.zeros((slots, len(INTEGERS)), dtype=torch.int64, device=device),
            flags=np.zeros(slots, np.uint8),
            logprobs=np.full(slots, -1, np.int8),
        )
        """What back ends read."""
        self.candidates = np.zeros(slots, np.int32)
        """Most likely tokens to report of each slot of a beam, of which the worker keeps none; 0: no beam."""

    def set(self, news: Sequence[NewSlot]) -> None:
        """Take over the parameters of new sequences, in which `fault_in` has found nothing wrong."""
        asking, numbers, integers = [], [], []
        for new in news:
            slot, params = new.slot, new.sampling
            self.state.flags[slot] = flags = _flags(params)
            self.state.logprobs[slot] = params.logprobs if params.HasField("logprobs") else -1
            self.candidates[slot] = new.candidates
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


_SAMPLED = frozenset(SamplingParams.DESCRIPTOR.fields_by_name)
_OFF = greedy()
_FLAGGED: Mapping[int, int] = {PENALTY: PENALTIES, FILTER: FILTERS}
_SWITCHES = [
    (each.name, getattr(_OFF, each.name), _FLAGGED[each.stage]) for each in STAGED if each.stage in _FLAGGED
]
"""Filters and penalties: the name, the value at which it is off, and the flag of a slot that has another."""


def _flags(params: SamplingParams) -> int:
    """DRAWS | FILTERS | PENALTIES, of those that change the choice."""
    flags = DRAWS
    for name, off, flag in _SWITCHES:
        if getattr(params, name) != off:
            flags |= flag
    return flags if params.temperature > 0 else flags & PENALTIES


def _int64(value: int) -> int:
    """The bits of a uint64 as int64."""
    return value - (1 << 64) if value >> 63 else value


def fault_in(params: SamplingParams, vocab_size: int) -> str:
    """What is wrong with sampling parameters; empty if nothing is."""
    if problem := problem_in(params):
        return problem.message
    if params.logprobs > vocab_size:
        return f"logprobs must be at most the vocabulary of {vocab_size} tokens, but is {params.logprobs}"
    return ""
