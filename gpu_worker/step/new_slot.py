"""Faults of a new sequence that its `NewSlot` alone shows."""

from collections.abc import Sequence

from gpu_worker.arrays import Int32s
from proto.worker_pb2 import NewSlot


def fault_in_tokens(new: NewSlot, tokens: Int32s, longest: int, vocab_size: int) -> str:
    """What is wrong with a sequence's tokens; "" if nothing is. `longest`: tokens that it may have."""
    length = new.forked_tokens + len(tokens)
    if not (len(tokens) and length <= longest):
        return f"{length} tokens, not 1 to {longest}"
    if new.candidates > vocab_size:
        return f"{new.candidates} candidates of a vocabulary of {vocab_size}"
    if not 0 < new.prompt_length <= length:
        return f"a prompt of {new.prompt_length} of {length} tokens"
    if tokens.min() < 0 or tokens.max() >= vocab_size:
        wrong = next(token for token in tokens.tolist() if not 0 <= token < vocab_size)
        return f"token {wrong} is not in the vocabulary of {vocab_size}"
    return ""


def adapter_of(new: NewSlot, adapters: Sequence[str]) -> int:
    """Number of a sequence's adapter, from 1; 0: it has none; -1: there is none of this name."""
    if not new.adapter:
        return 0
    return adapters.index(new.adapter) + 1 if new.adapter in adapters else -1
