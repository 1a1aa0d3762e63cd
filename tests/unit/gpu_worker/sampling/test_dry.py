"""DRY against its definition, written down plainly."""

import math
import time
from random import Random

import numpy as np
import pytest

from gpu_worker.sampling.dry import MOST, Dry, Repetitions
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


def check(dry: sampling_pb2.Dry, tokens: list[int], at_once: int | None = None) -> dict[int, float]:
    """`at_once`: tokens that the text begins with, before it gets one at a time; None: all."""
    made = Dry.of(dry)
    assert made is not None
    begun = len(tokens) if at_once is None else at_once
    text, found = made.after(Repetitions(0), tokens[:begun]), dict[int, float]()
    for length in range(begun, len(tokens) + 1):
        text = made.after(text, tokens[begun:length][-1:])
        assert text.end == length
        followers, penalties = made.penalties(text)
        found = dict(zip(followers.tolist(), penalties.tolist(), strict=True))
        assert found == pytest.approx(plainly(dry, tokens[:length]), rel=1e-6)
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
        tokens = chance.choices(range(vocabulary), k=length)
        check(dry, tokens)
        check(dry, tokens, chance.randrange(length + 1))


@pytest.mark.parametrize("seed", range(20))
def test_several_tokens_of_a_step(seed: int) -> None:
    chance = Random(seed)
    dry = asked(last_n=chance.choice((3, 20, ALL)), single=(3,), several=((0, 1, 0), (2, 2), (1, 0, 1, 1)))
    made = Dry.of(dry)
    assert made is not None
    text, tokens = Repetitions(0), list[int]()
    for _ in range(20):
        new = chance.choices(range(4), k=chance.randrange(5))
        text, tokens = made.after(text, new), tokens + new
        found = dict(zip(*map(np.ndarray.tolist, made.penalties(text)), strict=True))
        assert found == pytest.approx(plainly(dry, tokens), rel=1e-6)


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


def test_an_allowed_length_beyond_every_text() -> None:
    assert check(asked(allowed=2**32 - 1), [5] * 30) == {}


def test_a_long_repetition_stays_finite() -> None:
    found = check(asked(multiplier=100, base=10), [5] * 300)
    assert found == {5: np.float32(MOST)}


def test_a_text_of_one_token_costs_no_more_than_others() -> None:
    """Each of its 60,000 places goes on with a repetition of up to 60,000 tokens."""
    made, count = Dry.of(asked(base=1)), 60_000
    assert made is not None
    begun = time.process_time()
    text = made.after(made.after(Repetitions(0), [5] * count), [5])
    assert made.penalties(text)[0].tolist() == [5]
    assert text.repeated[-1] == count
    assert time.process_time() - begun < 3, "compared place by place it takes 20 s"


@pytest.mark.parametrize("dry", [asked(multiplier=0), asked(base=0.5), asked(last_n=0)])
def test_off(dry: sampling_pb2.Dry) -> None:
    assert Dry.of(dry) is None
