"""DRY, "don't repeat yourself": what is subtracted from logits of tokens that would go on with a repetition.

    tokens     a b c d x a b c       the newest are a b c, and so were those before d
    repeated   0 0 0 3 0 0 0 0       d would go on with three tokens that were there before
    penalty                          of d: multiplier * base ** (3 - allowed_length)

A token counts with the longest repetition that it would go on with. A repetition does not reach back beyond
the newest breaker, such as a line's end. As llama.cpp defines it, but for the order: penalties are subtracted
with the biases, before a repetition penalty divides or multiplies.

What is repeated follows with each further token from what was repeated before it. So a token costs one pass
over the text, however much of the text is repeated.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gpu_worker.arrays import Int32s
from proto import sampling_pb2

MOST = 1e30
"""Of a penalty: a token that must be chosen remains above those that must not be."""
_LOG_MAX = 88.7228391
"""Logarithm of the greatest float32. Exponents stay below the one that reaches it."""
_INT32_MAX = 2**31 - 1


def _none() -> Int32s:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Repetitions:
    """A text, and what its newest tokens repeat."""

    end: int
    """Position behind the text's last token."""
    tokens: Int32s = field(default_factory=_none)
    """Its newest tokens: those that count."""
    repeated: Int32s = field(default_factory=_none)
    """[tokens]: number of tokens before each one that are the text's newest, even if older than `tokens`."""
    since_breaker: int = 0
    """Tokens from the first one of the newest breaker on, or from the text's first one."""
    behind_breaker: int = 0
    """Tokens behind the newest breaker, or behind the text's beginning."""


@dataclass(frozen=True, slots=True)
class Dry:
    """The penalty of one sequence."""

    multiplier: float
    base: float
    allowed_length: int
    last_n: int
    """Newest tokens that count."""
    single: Int32s
    """Tokens that are breakers by themselves."""
    breakers: Collection[tuple[int, ...]]
    """The tokens of every breaker."""
    lengths: Mapping[int, Sequence[int]]
    """By its first token, the lengths of breakers, longest first."""
    longest_breaker: int
    """Tokens of the longest breaker, at least 1."""

    @classmethod
    def of(cls, asked: sampling_pb2.Dry) -> Self | None:
        """None if nothing is ever subtracted."""
        if not asked.dry_multiplier or asked.dry_base < 1 or not asked.dry_penalty_last_n:
            return None
        single = np.array(asked.breaker_tokens, np.int32)
        breakers = {(token,) for token in asked.breaker_tokens} | {
            tuple(breaker.tokens) for breaker in asked.breakers
        }
        lengths: dict[int, set[int]] = {}
        for breaker in breakers:
            lengths.setdefault(breaker[0], set()).add(len(breaker))
        return cls(
            multiplier=asked.dry_multiplier,
            base=asked.dry_base,
            allowed_length=min(asked.dry_allowed_length, _INT32_MAX),
            last_n=asked.dry_penalty_last_n,
            single=single,
            breakers=breakers,
            lengths={first: sorted(found, reverse=True) for first, found in lengths.items()},
            longest_breaker=max(map(len, breakers), default=1),
        )

    @property
    def _longest(self) -> int:
        """Repeated tokens beyond which a penalty no longer grows."""
        if self.base <= 1.000001:
            return _INT32_MAX
        return min(_INT32_MAX, self.allowed_length + int(_LOG_MAX / math.log(self.base)))

    def after(self, text: Repetitions, tokens: Sequence[int]) -> Repetitions:
        """`text` with further tokens: all tokens of a text at once, or those of a step."""
        if not tokens:
            return text
        known, repeated = text.tokens, text.repeated
        if len(known):
            for token in tokens:
                repeated = np.append(np.int32(0), np.where(known == token, repeated + 1, 0))
                known = np.append(known, np.int32(token))
        else:
            known = np.array(tokens[-self.last_n :], np.int32)
            repeated = _repeated(known.tolist())
        known, repeated = known[-self.last_n :], repeated[-self.last_n :]
        since, behind = text.since_breaker + len(tokens), text.behind_breaker + len(tokens)
        if newest := self._newest_breaker(known[1 - len(tokens) - self.longest_breaker :].tolist()):
            since, behind = newest
        return Repetitions(text.end + len(tokens), known, repeated, since, behind)

    def penalties(self, text: Repetitions) -> tuple[Int32s, NDArray[np.float32]]:
        """What is subtracted after `text`: token ids, each once, and the penalty of each."""
        count = len(text.tokens)
        limit = min(text.behind_breaker if text.since_breaker <= count else count, self._longest)
        within = np.minimum(np.arange(count, dtype=np.int32), limit)
        repeated = np.minimum(text.repeated, within)[1:]
        long = np.flatnonzero(repeated >= self.allowed_length)
        followers = text.tokens[1:][long]
        beyond = np.full(followers.max(initial=-1) + 1, -1, np.int32)
        np.maximum.at(beyond, followers, repeated[long] - self.allowed_length)
        beyond[self.single[self.single < len(beyond)]] = -1
        found = np.flatnonzero(beyond >= 0)
        exponents = beyond[found].astype(np.float64)
        penalties = np.minimum(self.multiplier * self.base**exponents, MOST)
        return found.astype(np.int32), penalties.astype(np.float32)

    def _newest_breaker(self, tokens: list[int]) -> tuple[int, int] | None:
        """The number of tokens from the first one of the newest breaker on, and of those behind the breaker.

        None if there is no breaker in `tokens`. Of breakers that begin alike the longest counts.
        """
        for back, token in enumerate(reversed(tokens), 1):
            begin = len(tokens) - back
            for length in self.lengths.get(token, ()):
                if length <= back and tuple(tokens[begin : begin + length]) in self.breakers:
                    return back, back - length
        return None


def _repeated(tokens: list[int]) -> Int32s:
    """[tokens]: number of tokens before each one that are the newest.

    The Z algorithm over the tokens from last to first (Gusfield 1997, "Algorithms on Strings, Trees, and
    Sequences", section 1.4).
    """
    text = tokens[::-1]
    alike = [0] * len(text)  # tokens from each one on that are the first ones
    left = right = 0
    for begin in range(1, len(text)):
        length = min(alike[begin - left], right - begin) if begin < right else 0
        if begin + length >= right:
            while begin + length < len(text) and text[begin + length] == text[length]:
                length += 1
            left, right = begin, begin + length
        alike[begin] = length
    return np.array([0, *alike[:0:-1]], np.int32)
