"""How many alternatives a request may ask for."""

import pytest

from proto.sampling import greedy
from proto.tokenizer_pb2 import TextRequest
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.requests.alternatives import MOST, bound_alternatives

VOCABULARY = 2**17
ALL = 2**31 - 1


def bounded(prompt: int = 5, n: int = 1, max_tokens: int | None = 4, **wanted: int) -> tuple[int, int]:
    """The numbers of alternatives that a request goes on with: of answers, and of the prompt."""
    request = TextRequest(sampling=greedy(**wanted), n=n, max_tokens=max_tokens)
    bound_alternatives(request, [1] * prompt, VOCABULARY)
    return request.sampling.logprobs, request.sampling.prompt_logprobs


def test_all_are_as_many_as_the_vocabulary_has() -> None:
    assert bounded(logprobs=ALL) == (VOCABULARY, 0)
    assert bounded(logprobs=ALL, max_tokens=2, prompt=2, prompt_logprobs=ALL) == (VOCABULARY, VOCABULARY)
    request = TextRequest(sampling=greedy(), n=1)
    bound_alternatives(request, [1], VOCABULARY)
    assert not request.sampling.HasField("logprobs")


def test_few_are_always_possible() -> None:
    assert bounded(prompt=MOST, n=100, max_tokens=None, logprobs=20, prompt_logprobs=20) == (20, 20)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"logprobs": ALL, "max_tokens": 5}, "logprobs"),
        ({"logprobs": ALL, "n": 5, "max_tokens": 1}, "logprobs"),
        ({"logprobs": 21, "max_tokens": None}, "logprobs"),
        ({"logprobs": ALL, "prompt_logprobs": ALL, "prompt": 2, "max_tokens": 3}, "logprobs"),
        ({"prompt_logprobs": ALL, "prompt": 5}, "prompt_logprobs"),
        ({"prompt_logprobs": 100, "prompt": MOST // 100 + 1}, "prompt_logprobs"),
    ],
)
def test_more_than_the_services_can_hold_are_refused(asked: dict[str, int], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"more than {MOST}") as refused:
        bounded(**asked)
    assert refused.value.param == param
