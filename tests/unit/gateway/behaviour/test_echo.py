"""`echo` and `prompt_logprobs`: prompts with their log probabilities, as OpenAI and vLLM write them."""

import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from proto.sampling_pb2 import NOT_FINISHED, STOP
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextRequest, TokenText
from tests.unit.gateway.conftest import Gateway

WORDS = ["<s>", "The", " fox", " saw"]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def word(place: int, request: TextRequest) -> TokenText:
    """A token of the prompt, with the alternatives that were asked for."""
    text = WORDS[place]
    token = TokenText(token_id=place, text=text, utf8=text.encode(), unseen=place == 0)
    token.text_offset = len("".join(WORDS[1:place]))
    if place:
        token.logprob, token.rank = -place - 0.5, place
        for rank in range(1, 1 + request.sampling.prompt_logprobs):
            other = text if rank == place else f"{text}~{rank}"
            token.top.add(token_id=place if rank == place else 10 * rank, text=other, logprob=-rank - 0.5)
            token.top[-1].utf8 = other.encode()
    return token


async def reads(request: TextRequest, context: Any) -> AsyncIterator[TextChunk]:
    """Delivers the prompt word by word, where that is asked for, then two words of an answer."""
    wants, done = request.sampling.HasField("prompt_logprobs"), request.scored_tokens
    ids = range(4) if request.return_prompt_tokens else ()
    info = PromptInfo(tokens=4, token_ids=ids, text="The fox saw" if request.echo else "")
    yield TextChunk(prompt=info, prompt_logprobs=[word(0, request)] if wants and not done else [])
    for place in range(max(1, done), len(WORDS) if wants else 0):
        yield TextChunk(prompt_logprobs=[word(place, request)])
    begin = len(request.resumed[0].token_ids) if request.resumed else 0
    last = min(2, request.max_tokens) - 1
    for place in range(begin, last + 1):
        chunk = TextChunk()
        for index in range(request.n):
            reason = STOP if place == last else NOT_FINISHED
            delta = chunk.deltas.add(index=index, text=" a", token_ids=[90 + place], finish_reason=reason)
            if request.sampling.HasField("logprobs"):
                delta.logprobs.add(token_id=90 + place, text=" a", utf8=b" a", logprob=-0.25)
        yield chunk


@pytest.fixture(autouse=True)
def reading(gateway: Gateway) -> None:
    gateway.tokenizer.generate = reads


async def ask(gateway: Gateway, path: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "The fox saw"}
    response = await gateway.http.post(path, json={"model": "m", **asked, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_the_prompt_comes_first_with_its_log_probabilities(gateway: Gateway) -> None:
    answer = await ask(gateway, echo=True, logprobs=1, n=2, max_tokens=2)
    for index, choice in enumerate(answer["choices"]):
        assert (choice["index"], choice["text"]) == (index, "The fox saw a a")
        assert choice["logprobs"] == {
            "tokens": ["<s>", "The", " fox", " saw", " a", " a"],
            "token_logprobs": [None, -1.5, -2.5, -3.5, -0.25, -0.25],
            "top_logprobs": [
                None,
                {"The": -1.5},
                {" fox": -2.5, " fox~1": -1.5},
                {" saw": -3.5, " saw~1": -1.5},
                {" a": -0.25},
                {" a": -0.25},
            ],
            "text_offset": [0, 0, 3, 7, 11, 13],
        }
        assert "prompt_logprobs" not in choice
    assert answer["usage"]["completion_tokens"] == 4


async def test_as_lm_eval_asks_for_the_prompt_alone(gateway: Gateway) -> None:
    """Its `local-completions` with token ids; `max_tokens` is 0 or 1."""
    choices = []
    for max_tokens in (0, 1):
        body = {"prompt": [[0, 1, 2, 3]], "echo": True, "logprobs": 1, "temperature": 0, "seed": 1}
        answer = await ask(gateway, **body, max_tokens=max_tokens)
        assert answer["usage"]["completion_tokens"] == max_tokens
        choices += answer["choices"]
    alone, one = choices
    assert (alone["text"], alone["finish_reason"]) == ("The fox saw", "length")
    assert alone["logprobs"]["token_logprobs"] == [None, -1.5, -2.5, -3.5]
    assert one["text"] == "The fox saw a"
    assert {name: found[:4] for name, found in one["logprobs"].items()} == alone["logprobs"]
    assert [request.max_tokens for request in gateway.tokenizer.requests] == [1, 1]


async def test_the_text_of_a_prompt_that_is_cut_is_that_of_its_tokens(gateway: Gateway) -> None:
    for prompt in ("Once. The fox saw", ["Once. The fox saw"]):
        answer = await ask(
            gateway, prompt=prompt, truncate_prompt_tokens=4, echo=True, logprobs=0, max_tokens=1
        )
        assert answer["choices"][0]["text"] == "The fox saw a"
        assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 0, 3, 7, 11]
    assert [request.echo for request in gateway.tokenizer.requests] == [True, True]


async def test_the_text_alone_costs_no_log_probabilities(gateway: Gateway) -> None:
    answer = await ask(gateway, echo=True, max_tokens=0)
    assert [(each["text"], each["logprobs"]) for each in answer["choices"]] == [("The fox saw", None)]
    assert not gateway.tokenizer.requests[0].sampling.HasField("prompt_logprobs")


EXPECTED = [
    None,
    {"1": {"logprob": -1.5, "rank": 1, "decoded_token": "The"}},
    {
        "2": {"logprob": -2.5, "rank": 2, "decoded_token": " fox"},
        "10": {"logprob": -1.5, "rank": 1, "decoded_token": " fox~1"},
    },
    {
        "3": {"logprob": -3.5, "rank": 3, "decoded_token": " saw"},
        "10": {"logprob": -1.5, "rank": 1, "decoded_token": " saw~1"},
    },
]


async def test_in_the_manner_of_vllm(gateway: Gateway) -> None:
    answer = await ask(gateway, prompt_logprobs=1, n=2, max_tokens=1)
    assert [choice["prompt_logprobs"] for choice in answer["choices"]] == [EXPECTED] * 2
    assert [(choice["text"], choice["logprobs"]) for choice in answer["choices"]] == [(" a", None)] * 2
    answer = await ask(gateway, CHAT, prompt_logprobs=1, max_tokens=1)
    assert answer["prompt_logprobs"] == EXPECTED


async def test_both_manners_at_once_each_with_its_own_alternatives(gateway: Gateway) -> None:
    answer = await ask(gateway, echo=True, logprobs=0, prompt_logprobs=1, max_tokens=1)
    assert gateway.tokenizer.requests[0].sampling.prompt_logprobs == 1
    (choice,) = answer["choices"]
    assert choice["prompt_logprobs"] == EXPECTED
    assert choice["logprobs"]["top_logprobs"][1:4] == [{"The": -1.5}, {" fox": -2.5}, {" saw": -3.5}]


@pytest.mark.parametrize("max_tokens", [0, 2])
async def test_a_stream_begins_with_the_prompt(gateway: Gateway, max_tokens: int) -> None:
    whole = await ask(gateway, echo=True, logprobs=1, n=2, max_tokens=max_tokens)
    *events, done = await gateway.events(
        COMPLETIONS, prompt="The fox saw", echo=True, logprobs=1, n=2, max_tokens=max_tokens
    )
    assert done == "[DONE]"
    for index in range(2):
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        mine = [choice for choice in choices if choice["index"] == index]
        assert mine[0]["text"] == "The fox saw"
        assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
        expected = whole["choices"][index]
        assert mine[-1]["finish_reason"] == expected["finish_reason"]
        assert "".join(choice["text"] for choice in mine) == expected["text"]
        parts = [choice["logprobs"] for choice in mine if choice["logprobs"]]
        for name, values in expected["logprobs"].items():
            assert [value for part in parts for value in part[name]] == values


async def test_death_after_any_chunk_changes_nothing(gateway: Gateway) -> None:
    body = {"echo": True, "logprobs": 1, "prompt_logprobs": 1, "max_tokens": 2, "seed": 5}
    undisturbed = (await ask(gateway, **body))["choices"]
    for place in range(6):
        deaths = [place]

        async def mortal(request: TextRequest, context: Any) -> AsyncIterator[TextChunk]:
            left = deaths.pop() if deaths else -1  # noqa: B023
            async for chunk in reads(request, context):
                if not left:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "killed", (("quire-lost", "t-1"),))
                left -= 1
                yield chunk

        gateway.tokenizer.requests.clear()
        gateway.tokenizer.generate = mortal
        assert (await ask(gateway, **body))["choices"] == undisturbed
        assert [request.scored_tokens for request in gateway.tokenizer.requests] == [0, min(place, 4)]


@pytest.mark.parametrize("prompt", ["The fox saw", [0, 1, 2, 3]])
async def test_without_text_the_prompt_has_none_either(gateway: Gateway, prompt: Any) -> None:
    """Its tokens are there, and offsets are those of the text that is not shown."""
    asked = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 2, "detokenize": False}
    (choice,) = (await ask(gateway, return_token_ids=True, **asked))["choices"]
    assert choice["logprobs"]["tokens"] == [*WORDS, " a", " a"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 3, 7, 11, 13]
    assert choice["prompt_token_ids"] == [0, 1, 2, 3]
    events = [json.loads(event) for event in await gateway.events(COMPLETIONS, **asked) if event != "[DONE]"]
    for text in (choice["text"], events[0]["choices"][0]["text"]):
        assert "fox" not in text
    assert gateway.tokenizer.requests[0].no_text


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": False}, "max_tokens"),
        ({"echo": 1}, "echo"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
async def test_what_is_refused(gateway: Gateway, body: dict[str, Any], param: str) -> None:
    response = await gateway.http.post(COMPLETIONS, json={"model": "m", "prompt": "A", **body})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert not gateway.tokenizer.requests
