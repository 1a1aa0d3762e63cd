"""Every slot's sampling parameters: on the device as arrays, here as flags that say who asks for what."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.machine.transfer import to_device
from proto.sampling_pb2 import SamplingParams
from proto.worker_pb2 import NewSlot

DRAWS = 1
"""The slot's temperature is above 0."""
FILTERS = 2
"""It has a top_k, top_p or min_p."""
PENALTIES = 4
"""It has a penalty."""

MAX_LOGPROBS = 20


class SlotSampling:
    """Slot-indexed parameters."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.flags = np.zeros(slots, np.uint8)
        """DRAWS | FILTERS | PENALTIES of each slot."""
        self.logprobs = np.full(slots, -1, np.int8)
        """Alternatives wanted with each token; -1 = no log probabilities at all."""
        self.candidates = np.zeros(slots, np.int32)
        """Most likely tokens that are reported of each slot instead of keeping one; 0 of all but beams."""
        self.number_table = torch.zeros((slots, 6), device=device)
        """Temperature, top_p, min_p, presence, frequency and repetition penalty of each slot."""
        self.integer_table = torch.zeros((slots, 5), dtype=torch.int64, device=device)
        """top_k, seed, sequence index, prompt length and dropped tokens of each slot."""

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
            self.flags[slot] = flags
            self.logprobs[slot] = params.logprobs if params.HasField("logprobs") else -1
            self.candidates[slot] = new.candidates
            if flags:
                asking.append(slot)
                numbers.append((params.temperature, params.top_p, params.min_p, *penalties))
                seed = params.seed - (1 << 64) if params.seed >> 63 else params.seed  # its bits, as int64
                place = (new.sequence_index, new.prompt_length, new.dropped_tokens)
                integers.append((min(params.top_k, 1 << 31), seed, *place))
        if asking:
            device = self.number_table.device
            slots = to_device(torch.tensor(asking), device)
            self.number_table[slots] = to_device(torch.tensor(numbers), device)
            self.integer_table[slots] = to_device(torch.tensor(integers), device)

    def numbers(self, slots: Tensor) -> tuple[Tensor, ...]:
        """float32 [rows, 1] each: temperature, top_p, min_p, presence, frequency, repetition."""
        return self.number_table[slots].unsqueeze(2).unbind(1)

    def integers(self, slots: Tensor) -> tuple[Tensor, ...]:
        """int64 [rows, 1] each: top_k, seed, sequence index, prompt length, dropped tokens."""
        return self.integer_table[slots].unsqueeze(2).unbind(1)


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
