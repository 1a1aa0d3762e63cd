"""The sampling parameters of every slot: tables on the device, on the host flags of what a slot asks for."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.sampling import DRAWS, FILTERS, PENALTIES, SamplingState
from gpu_worker.machine.transfer import to_device
from proto.sampling_pb2 import SamplingParams
from proto.worker_pb2 import NewSlot

MAX_LOGPROBS = 20


class SamplingTable:
    """Slot-indexed sampling parameters; `SamplingState` says what is where."""

    def __init__(self, tokens: Tensor) -> None:
        """`tokens`: int32 [slots, max_model_len + 1], the tokens of each slot, on the device."""
        slots, device = len(tokens), tokens.device
        self.state = SamplingState(
            tokens,
            numbers=torch.zeros((slots, 6), device=device),
            integers=torch.zeros((slots, 5), dtype=torch.int64, device=device),
            flags=np.zeros(slots, np.uint8),
            logprobs=np.full(slots, -1, np.int8),
        )
        """What back ends read."""
        self.candidates = np.zeros(slots, np.int32)
        """Most likely tokens to report of each slot of a beam, of which the worker keeps none; 0: no beam."""

    def set(self, news: Sequence[NewSlot]) -> None:
        """Take over what new sequences ask for, which `fault_in` has found nothing against."""
        asking, numbers, integers = [], [], []
        for new in news:
            slot, params = new.slot, new.sampling
            penalties = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
            flags = 0
            if params.temperature > 0:
                filters = bool(params.top_k) or params.top_p < 1 or params.min_p > 0
                flags |= DRAWS | (FILTERS if filters else 0)
            if penalties != (0, 0, 1):
                flags |= PENALTIES
            self.state.flags[slot] = flags
            self.state.logprobs[slot] = params.logprobs if params.HasField("logprobs") else -1
            self.candidates[slot] = new.candidates
            if flags:
                asking.append(slot)
                numbers.append((params.temperature, params.top_p, params.min_p, *penalties))
                seed = params.seed - (1 << 64) if params.seed >> 63 else params.seed  # its bits, as int64
                place = (new.sequence_index, new.prompt_length, new.dropped_tokens)
                integers.append((min(params.top_k, 1 << 31), seed, *place))
        if asking:
            device = self.state.tokens.device
            slots = to_device(torch.tensor(asking), device)
            self.state.numbers[slots] = to_device(torch.tensor(numbers), device)
            self.state.integers[slots] = to_device(torch.tensor(integers), device)


def fault_in(params: SamplingParams, vocab_size: int) -> str:
    """What is wrong with sampling parameters; empty if nothing is."""
    checks = (
        ("temperature", params.temperature, 0.0 <= params.temperature < math.inf),
        ("top_p", params.top_p, 0.0 < params.top_p <= 1.0),
        ("min_p", params.min_p, 0.0 <= params.min_p <= 1.0),
        ("presence_penalty", params.presence_penalty, abs(params.presence_penalty) <= 2.0),
        ("frequency_penalty", params.frequency_penalty, abs(params.frequency_penalty) <= 2.0),
        ("repetition_penalty", params.repetition_penalty, 0.0 < params.repetition_penalty < math.inf),
        ("logprobs", params.logprobs, params.logprobs <= min(MAX_LOGPROBS, vocab_size)),
    )
    for name, value, good in checks:
        if not good:
            return f"{name} {value:g} is out of range"
    return ""
