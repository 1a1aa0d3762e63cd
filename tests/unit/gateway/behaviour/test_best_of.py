"""`best_of`: several are generated, the likeliest are given."""

from collections.abc import AsyncIterator
from typing import Any

from proto.sampling_pb2 import LENGTH
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta, TextRequest, TokenText
from tests.unit.gateway.conftest import FakeTokenizer, Gateway

LIKELIHOODS = [-2.0, -0.5, -3.0, -1.0]
"""Mean log probability of each sequence's tokens; they have one, two, three and four of them."""


async def guesses(request: TextRequest, context: Any) -> AsyncIterator[TextChunk]:
    yield TextChunk(prompt=PromptInfo(tokens=2))
    assert request.sampling.HasField("logprobs")
    for index in range(request.n):
        count = index + 1
        tokens = [TokenText(token_id=index, text="x", utf8=b"x", logprob=LIKELIHOODS[index])] * count
        delta = TextDelta(index=index, text=f"guess {index}", token_ids=[index] * count, finish_reason=LENGTH)
        delta.logprobs.extend(tokens)
        yield TextChunk(deltas=[delta])


async def ask(gateway: Gateway, tokenizer: FakeTokenizer, **body: Any) -> dict[str, Any]:
    tokenizer.generate = guesses
    response = await gateway.http.post("/v1/completions", json={"model": "m", "prompt": "p", **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_the_likeliest_by_token_is_given(gateway: Gateway, tokenizer: FakeTokenizer) -> None:
    answer = await ask(gateway, tokenizer, best_of=4)
    assert [(each["index"], each["text"]) for each in answer["choices"]] == [(0, "guess 1")]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 1 + 2 + 3 + 4  # all were generated
    assert tokenizer.requests[0].n == 4


async def test_the_best_come_first_for_every_prompt(gateway: Gateway, tokenizer: FakeTokenizer) -> None:
    answer = await ask(gateway, tokenizer, best_of=4, n=2, prompt=["p", "q"], logprobs=0)
    texts = [(each["index"], each["text"]) for each in answer["choices"]]
    assert texts == [(0, "guess 1"), (1, "guess 3"), (2, "guess 1"), (3, "guess 3")]
    assert [len(each["logprobs"]["tokens"]) for each in answer["choices"]] == [2, 4, 2, 4]


async def test_best_of_as_many_as_given_changes_nothing(gateway: Gateway) -> None:
    body = {"model": "m", "prompt": "p", "n": 2}
    plain = await gateway.http.post("/v1/completions", json=body)
    same = await gateway.http.post("/v1/completions", json={**body, "best_of": 2})
    assert [each["text"] for each in plain.json()["choices"]] == [
        each["text"] for each in same.json()["choices"]
    ]
    assert await gateway.events("/v1/completions", prompt="p", n=2, best_of=2)
