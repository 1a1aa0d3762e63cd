"""DRY against its definition, written down plainly."""

import math
from random import Random

import numpy as np
import pytest

from gpu_worker.sampling.dry import MOST, Dry
from proto import sampling_pb2
from proto.sampling_pb2 import TokenSequence

ALL = 2**31 - 1


def asked(
    base: float = 1.75,
    allowed: int = 2,
    last_n: int = ALL,
    single: tuple[int, ...] = (),
    several: tuple[tuple[int, ...], ...] = (),
    multiplier: float = 0.5,
) -> sampling_pb2.Dry:
    return sampling_pb2.Dry(
        dry_multiplier=multiplier,
        dry_base=base,
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
        breaker_tokens=single,
        breakers=[TokenSequence(tokens=tokens) for tokens in several],
    )


def plainly(dry: sampling_pb2.Dry, tokens: list[int]) -> dict[int, float]:
    """Place after place, token after token."""
    text = tokens[-dry.dry_penalty_last_n :]
    if len(text) <= dry.dry_allowed_length:
        return {}
    breakers = [(token,) for token in dry.breaker_tokens] + [tuple(each.tokens) for each in dry.breakers]
    limit = len(text)
    for begin in reversed(range(len(text))):
        here = [each for each in breakers if tuple(text[begin : begin + len(each)]) == each]
        if here:
            limit = len(text) - begin - max(map(len, here))
            break
    if limit < dry.dry_allowed_length:
        return {}
    highest = int(88.7228391 / math.log(dry.dry_base)) if dry.dry_base > 1.000001 else ALL
    found: dict[int, float] = {}
    for end in range(1, len(text)):
        repeated = 0
        while repeated < min(end, limit) and text[end - 1 - repeated] == text[-1 - repeated]:
            repeated += 1
        if repeated >= dry.dry_allowed_length and text[end] not in dry.breaker_tokens:
            penalty = dry.dry_multiplier * dry.dry_base ** min(repeated - dry.dry_allowed_length, highest)
            found[text[end]] = max(found.get(text[end], 0), min(penalty, MOST))
    return found


def check(dry: sampling_pb2.Dry, tokens: list[int]) -> dict[int, float]:
    made = Dry.of(dry)
    assert made is not None
    followers, penalties = made.penalties(tokens)
    found = dict(zip(followers.tolist(), penalties.tolist(), strict=True))
    assert found == pytest.approx(plainly(dry, tokens), rel=1e-6)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_random_texts(seed: int) -> None:
    chance = Random(seed)
    vocabulary = chance.choice((2, 3, 6))
    dry = asked(
        base=chance.choice((1, 1.0000001, 1.75, 4)),
        allowed=chance.randrange(5),
        last_n=chance.choice((1, 3, 20, ALL)),
        single=tuple(chance.sample(range(vocabulary), chance.randrange(2))),
        several=tuple(
            tuple(chance.choices(range(vocabulary), k=chance.randrange(2, 5)))
            for _ in range(chance.randrange(3))
        ),
    )
    for length in (0, 1, 2, 5, 30, 60):
        check(dry, chance.choices(range(vocabulary), k=length))


def test_what_would_go_on_with_a_repetition() -> None:
    """The example of llama.cpp: `a b c c b c y a b c`."""
    a, b, c, y = range(4)
    found = check(asked(allowed=1, multiplier=1, base=2), [a, b, c, c, b, c, y, a, b, c])
    assert found == {c: 4, b: 1, y: 2}


def test_a_breaker_ends_what_can_be_a_repetition() -> None:
    text = [1, 2, 3, 4, 9, 1, 2, 3]
    assert check(asked(), text) == {4: np.float32(0.5 * 1.75)}
    assert check(asked(single=(1,)), text) == {4: 0.5}
    assert check(asked(single=(2,)), text) == {}
    assert check(asked(several=((9, 1),)), text) == {4: 0.5}
    assert check(asked(single=(4,)), text) == {}


def test_a_long_repetition_stays_finite() -> None:
    found = check(asked(multiplier=100, base=10), [5] * 300)
    assert found == {5: np.float32(MOST)}


@pytest.mark.parametrize("dry", [asked(multiplier=0), asked(base=0.5), asked(last_n=0)])
def test_off(dry: sampling_pb2.Dry) -> None:
    assert Dry.of(dry) is None
