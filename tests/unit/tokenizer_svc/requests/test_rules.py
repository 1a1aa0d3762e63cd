"""Rules that name tokens, of a model that has fewer rows than its tokenizer has tokens."""

from dataclasses import replace

import pytest

from proto.sampling_pb2 import Dry, SamplingParams, TokenRules
from proto.tokenizer_pb2 import TextRequest
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.breakers import Breakers
from tokenizer_svc.requests.prompt import predicted_tokens
from tokenizer_svc.requests.rules import complete_rules, stop_tokens


@pytest.fixture(scope="module")
def fewer(byte_level: TextModel) -> TextModel:
    """`<think>` and what follows it have no rows; to the tokenizer it is special."""
    token = byte_level.tokenizer.token_to_id("<think>")
    special = {**byte_level.special_tokens, "<think>": token}
    return replace(byte_level, vocab_size=token, special_tokens=special)


async def test_tokens_that_the_model_cannot_write_are_in_no_rule(fewer: TextModel) -> None:
    request = TextRequest(
        bad_words=["<think>", "the"],
        stop=["<think>", "</s>"],
        dry_breakers=["e<think>"],
        sampling=SamplingParams(rules=TokenRules(min_tokens=2, dry=Dry(dry_multiplier=1))),
    )
    await complete_rules(fewer, request, Breakers(fewer))
    rules = request.sampling.rules
    the = [fewer.encode(text, special=False) for text in ("the", " the")]
    assert [list(word.tokens) for word in rules.bad_words] == the
    assert stop_tokens(fewer, request) == list(rules.end_tokens) == [1]
    spelled = [*rules.dry.breaker_tokens, *(token for each in rules.dry.breakers for token in each.tokens)]
    assert max(spelled, default=0) < fewer.vocab_size


@pytest.mark.parametrize("times", [1, 900])
async def test_a_prediction_is_of_tokens_that_the_model_can_write(fewer: TextModel, times: int) -> None:
    request = TextRequest(prediction="the<think> lazy" * times)
    spelled = [*fewer.encode("the", special=False), *fewer.encode(" lazy", special=False)]
    assert await predicted_tokens(fewer, request) == spelled * times
