"""DRY, "don't repeat yourself": what is subtracted from logits of tokens that would go on with a repetition.

    tokens     a b c d x a b c       the newest are a b c, and so were those before d
    repeated         3               d would go on with three tokens that were there before
    penalty                          of d: multiplier * base ** (3 - allowed_length)

A token counts with the longest repetition that it would go on with. A repetition does not reach back beyond
the newest breaker, such as a line's end. As llama.cpp defines it, but for the order: penalties are subtracted
with the biases, before a repetition penalty divides or multiplies.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gpu_worker.arrays import Int32s
from proto import sampling_pb2

MOST = 1e30
"""Of a penalty: a token that must be chosen remains above those that must not be."""
_LOG_MAX = 88.7228391
"""Logarithm of the greatest float32. Exponents stay below the one that reaches it."""


@dataclass(frozen=True, slots=True)
class Dry:
    """The penalty of one sequence."""

    multiplier: float
    base: float
    allowed_length: int
    last_n: int
    """Newest tokens that count."""
    breakers: Mapping[int, Sequence[tuple[int, ...]]]
    """By its first token, the other tokens of each breaker."""

    @classmethod
    def of(cls, asked: sampling_pb2.Dry) -> Self | None:
        """None if nothing is ever subtracted."""
        if not asked.dry_multiplier or asked.dry_base < 1 or not asked.dry_penalty_last_n:
            return None
        breakers: dict[int, list[tuple[int, ...]]] = {token: [()] for token in asked.breaker_tokens}
        for breaker in asked.breakers:
            first, *others = breaker.tokens
            breakers.setdefault(first, []).append(tuple(others))
        length, last_n = asked.dry_allowed_length, asked.dry_penalty_last_n
        return cls(asked.dry_multiplier, asked.dry_base, length, last_n, breakers)

    @property
    def _longest(self) -> int:
        """Repeated tokens beyond which a penalty no longer grows."""
        if self.base <= 1.000001:
            return 2**31
        return self.allowed_length + int(_LOG_MAX / math.log(self.base))

    def penalties(self, tokens: Sequence[int]) -> tuple[Int32s, NDArray[np.float32]]:
        """What is subtracted after `tokens`: token ids, each once, and the penalty of each.

        Of a repetition all places are compared at once, one token further back each time.
        """
        text = np.array(tokens[-self.last_n :], np.int32)
        last = len(text) - 1
        limit = self._tokens_behind_breaker(text.tolist()) if last >= self.allowed_length else -1
        if limit < self.allowed_length:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        repeated = np.zeros(last, np.int64)
        places = np.arange(last)
        for length in range(min(limit, self._longest)):
            places = places[places >= length]
            places = places[text[places - length] == text[last - length]]
            if not len(places):
                break
            repeated[places] = length + 1
        long = np.flatnonzero(repeated >= self.allowed_length)
        followers, numbers = np.unique(text[long + 1], return_inverse=True)
        most = np.zeros(len(followers), np.int64)
        np.maximum.at(most, numbers, repeated[long])
        open_to = np.array([() not in self.breakers.get(token, ()) for token in followers.tolist()], np.bool_)
        exponents = (most - self.allowed_length)[open_to].astype(np.float64)
        return followers[open_to], np.minimum(self.multiplier * self.base**exponents, MOST).astype(np.float32)

    def _tokens_behind_breaker(self, text: list[int]) -> int:
        """Tokens after the newest breaker, of which the longest counts that begins with its first token."""
        for back, token in enumerate(reversed(text)):
            longest = -1
            for others in self.breakers.get(token, ()):
                begin = len(text) - back
                if longest < len(others) <= back and tuple(text[begin : begin + len(others)]) == others:
                    longest = len(others)
            if longest >= 0:
                return back - longest
        return len(text)
