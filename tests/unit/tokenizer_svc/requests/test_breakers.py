"""The tokens of DRY's breakers."""

import pytest

from proto.sampling_pb2 import Dry
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests import breakers
from tokenizer_svc.requests.breakers import Breakers


def found(model: TextModel, *texts: str) -> tuple[list[int], set[tuple[int, ...]]]:
    dry = Dry(breaker_tokens=[1])
    Breakers(model).add_to(dry, texts)
    return list(dry.breaker_tokens), {tuple(each.tokens) for each in dry.breakers}


def words(model: TextModel) -> dict[int, bytes]:
    return {token: model.every_token[token] for token in range(model.vocab_size)}


@pytest.mark.parametrize("texts", [["t"], ["e", "\n"], [" "], []])
def test_a_token_that_contains_a_breaker_is_one(byte_level: TextModel, texts: list[str]) -> None:
    single, several = found(byte_level, *texts)
    expected = [
        token
        for token, word in words(byte_level).items()
        if any(each in word.decode(errors="replace") for each in texts)
    ]
    assert (single, several) == (expected, set())
    assert bool(texts) is bool(single)


def test_a_breaker_that_begins_in_a_token_and_goes_on_in_others(byte_level: TextModel) -> None:
    single, several = found(byte_level, "the d")
    for token, *rest in several:
        spelled = b"".join(byte_level.every_token[each] for each in (token, *rest))
        assert spelled.endswith(b"the d"), spelled
        assert (
            byte_level.encode(b"".join(byte_level.every_token[each] for each in rest).decode(), False) == rest
        )
    heads = {
        token for token, word in words(byte_level).items() if word.endswith((b"t", b"th", b"the", b"the "))
    }
    assert {token for token, *_ in several} == heads - {*single}


def test_a_beginning_is_not_compared_with_every_token(
    byte_level: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0

    class Counted(bytes):
        def startswith(self, *arguments):
            nonlocal compared
            compared += 1
            return super().startswith(*arguments)

    mine = Breakers(byte_level)
    mine.add_to(Dry(), ["x"])
    monkeypatch.setattr(mine, "_reversed", [(Counted(word), token) for word, token in mine._reversed])
    mine.add_to(dry := Dry(), ["the quick brown fox jumps over lazy dogs"])
    assert dry.breakers
    assert len(dry.breakers) <= compared < 2 * len(dry.breakers) + breakers.LONGEST


def test_bounds(byte_level: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(byte_level, "t" * 100) == found(byte_level, "t" * breakers.LONGEST)
    monkeypatch.setattr(breakers, "MOST_TOKENS", 2)
    _, several = found(byte_level, "naïve dogs")
    assert several
    assert {len(each) for each in several} <= {2, 3}
