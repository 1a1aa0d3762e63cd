"""POST /pooling: a vector for each text, or for each token."""

import asyncio
import base64
import struct
from typing import Any

import grpc
import pytest

from gateway.api.pooling import pooling
from gateway.api.pooling.answer_schema import PooledList
from gateway.api.pooling.embeddings import Bounds
from proto.sampling_pb2 import ALL, MEAN, NO_POOLING
from proto.tokenizer_pb2 import EmbedRequest, EmbedResponse

PATH, EMBEDDINGS = "/pooling", "/v1/embeddings"


def vectors_of(text: str) -> list[list[float]]:
    """Of each letter: its number, its place, and a half."""
    return [[float(ord(letter)), float(place), 0.5] for place, letter in enumerate(text)]


async def each_letter(request: EmbedRequest, _: Any) -> EmbedResponse:
    numbers = [number for vector in vectors_of(request.text) for number in vector]
    return EmbedResponse(embedding=struct.pack(f"<{len(numbers)}f", *numbers), tokens=len(request.text))


@pytest.fixture
def lettered(gateway: Any) -> Any:
    """A gateway before a tokenizer service that gives vectors of letters."""
    gateway.tokenizer.embed = each_letter
    return gateway


@pytest.mark.parametrize("form", ["float", "base64"])
async def test_pooling_has_the_same_vectors_in_another_shape(gateway: Any, form: str) -> None:
    ask = {"model": "m", "input": ["a fox", "snow"], "encoding_format": form, "pooling": "mean"}
    answer = await gateway.http.post("/pooling", json=ask)
    pooled = PooledList.model_validate(answer.json(), strict=True)
    embedded = (await gateway.http.post(EMBEDDINGS, json=ask)).json()
    assert [one.data for one in pooled.data] == [one["embedding"] for one in embedded["data"]]
    assert [one.index for one in pooled.data] == [0, 1]
    assert (pooled.id, pooled.model) == (f"pool-{answer.headers['x-request-id']}", "m")
    assert pooled.usage.model_dump() == embedded["usage"]
    assert {request.pooling for request in gateway.tokenizer.texts} == {MEAN}


@pytest.mark.parametrize("task", [None, "embed"])
async def test_a_text_has_one_vector_unless_its_tokens_have(gateway: Any, task: str | None) -> None:
    answer = await gateway.http.post(PATH, json={"model": "m", "input": "fox!", "task": task})
    assert answer.json()["data"] == [{"object": "pooling", "index": 0, "data": [4, 0.333333343]}]
    assert [request.pooling for request in gateway.tokenizer.texts] == [NO_POOLING]


async def test_a_vector_for_each_token(lettered: Any) -> None:
    texts = ["a fox", "x", "snow"]
    ask = {"model": "m", "input": texts, "task": "token_embed", "truncate_prompt_tokens": 9}
    answer = await lettered.http.post(PATH, json=ask)
    pooled = PooledList.model_validate(answer.json(), strict=True)
    assert [one.data for one in pooled.data] == [vectors_of(text) for text in texts]
    assert [one.index for one in pooled.data] == [0, 1, 2]
    assert (pooled.usage.prompt_tokens, pooled.usage.total_tokens) == (10, 10)
    asked = lettered.tokenizer.texts
    assert {(each.pooling, each.truncate_prompt_tokens) for each in asked} == {(ALL, 9)}


async def test_all_numbers_of_a_text_in_base64(lettered: Any) -> None:
    ask = {"model": "m", "input": ["a fox"], "task": "token_embed", "encoding_format": "base64"}
    (one,) = (await lettered.http.post(PATH, json=ask)).json()["data"]
    numbers = [number for vector in vectors_of("a fox") for number in vector]
    assert base64.b64decode(one["data"]) == struct.pack("<15f", *numbers)


async def test_an_answer_has_an_end(lettered: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts that are still computed when there are too many numbers are computed no further."""
    monkeypatch.setattr(pooling, "OF_TOKENS", Bounds(at_once=3, most_numbers=30))
    ask = {"model": "m", "task": "token_embed"}
    assert (await lettered.http.post(PATH, json={**ask, "input": ["abcde", "abcde"]})).status_code == 200

    async def slow(request: EmbedRequest, context: Any) -> EmbedResponse:
        if request.text == "slow":
            await asyncio.Event().wait()
        return await each_letter(request, context)

    lettered.tokenizer.embed = slow
    answer = await lettered.http.post(PATH, json={**ask, "input": ["slow", "abcde", "abcdef"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
    assert "more than 30 numbers" in answer.json()["error"]["message"]
    await asyncio.wait_for(lettered.tokenizer.cancelled.wait(), 60)


async def test_few_texts_at_once(lettered: Any) -> None:
    ask = {"model": "m", "input": ["fox"] * 50, "task": "token_embed"}
    assert len((await lettered.http.post(PATH, json=ask)).json()["data"]) == 50
    assert lettered.tokenizer.most_texts <= pooling.OF_TOKENS.at_once


async def test_a_text_whose_server_died_is_asked_again(lettered: Any) -> None:
    died = []

    async def mortal(request: EmbedRequest, context: Any) -> EmbedResponse:
        if not died:
            died.append(request.text)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "killed", (("quire-lost", "tokenizer-1"),))
        return await each_letter(request, context)

    lettered.tokenizer.embed = mortal
    answer = await lettered.http.post(PATH, json={"model": "m", "input": "fox", "task": "token_embed"})
    assert answer.json()["data"][0]["data"] == vectors_of("fox")
    assert died == ["fox"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"task": "token_classify"}, "task"),
        ({"task": "token_embed", "dimensions": 2}, "dimensions"),
        ({"task": "token_embed", "pooling": "mean"}, "pooling"),
    ],
)
async def test_what_is_refused(refusing: Any, fields: dict[str, Any], param: str) -> None:
    answer = await refusing.post(PATH, json={"model": "m", "input": "a", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_embeddings_know_no_task(gateway: Any) -> None:
    ask = {"model": "m", "input": "fox!", "task": "token_embed"}
    answer = await gateway.http.post(EMBEDDINGS, json=ask)
    assert len(answer.json()["data"][0]["embedding"]) == 2
