"""POST /v1/embeddings, with the openai client and without."""

import asyncio
import json
from typing import Any

import grpc
import numpy as np
import pytest

from gateway.api.pooling.embeddings import AT_ONCE
from proto.sampling_pb2 import CLS, LAST, MEAN, NO_POOLING

PATH = "/v1/embeddings"
THIRD = float(np.float32(1 / 3))


async def test_the_openai_client(gateway: Any) -> None:
    client = gateway.openai()
    packed = await client.embeddings.create(model="m", input=["a fox", "snow"])
    plain = await client.embeddings.create(model="m", input=["a fox", "snow"], encoding_format="float")
    assert [one.embedding for one in packed.data] == [[5.0, THIRD], [4.0, THIRD]]
    assert [np.float32(one.embedding).tolist() for one in plain.data] == [[5.0, THIRD], [4.0, THIRD]]
    assert [(one.index, one.object) for one in packed.data] == [(0, "embedding"), (1, "embedding")]
    assert (packed.object, packed.model) == ("list", "m")
    assert (packed.usage.prompt_tokens, packed.usage.total_tokens) == (9, 9)


@pytest.mark.parametrize("given", ["fox!", [7, 8, 9, 10], ["fox!"], [[7, 8, 9, 10]]])
async def test_every_shape_of_input(gateway: Any, given: Any) -> None:
    answer = await gateway.http.post(PATH, json={"model": "m", "input": given})
    assert answer.json()["data"] == [{"object": "embedding", "index": 0, "embedding": [4, 0.333333343]}]
    (request,) = gateway.tokenizer.texts
    assert request.text == "fox!" or list(request.tokens.ids) == [7, 8, 9, 10]


@pytest.mark.parametrize("given", ["", ["", "a fox"]])
async def test_a_text_may_be_empty(gateway: Any, given: Any) -> None:
    """Whether it has tokens, the tokenizer knows: special ones are some."""
    answer = await gateway.http.post(PATH, json={"model": "m", "input": given})
    assert answer.status_code == 200
    texts = {request.text for request in gateway.tokenizer.texts if request.WhichOneof("input") == "text"}
    assert texts == {given} if isinstance(given, str) else set(given)


async def test_many_texts_in_order_and_in_turns(gateway: Any) -> None:
    texts = ["x" * (1 + length % 90) for length in range(2048)]
    answer = await gateway.openai().embeddings.create(model="m", input=texts)
    assert [one.embedding[0] for one in answer.data] == [len(text) for text in texts]
    assert 1 < gateway.tokenizer.most_texts <= AT_ONCE
    assert len({request.request_id for request in gateway.tokenizer.texts}) == 2048


@pytest.mark.parametrize(
    ("pooling", "expected"), [(None, NO_POOLING), ("mean", MEAN), ("last", LAST), ("cls", CLS)]
)
async def test_parameters_reach_the_tokenizer(gateway: Any, pooling: str | None, expected: int) -> None:
    fields = {"pooling": pooling, "dimensions": 3, "cache_salt": "s", "user": "u", "priority": -4}
    fields["truncate_prompt_tokens"] = -1
    answer = await gateway.http.post(PATH, json={"model": "m", "input": "a", **fields})
    assert answer.status_code == 200
    (request,) = gateway.tokenizer.texts
    assert request.request_id == answer.headers["x-request-id"]
    assert (request.pooling, request.dimensions, request.cache_salt) == (expected, 3, "s")
    assert (request.tenant, request.user, request.priority) == ("127.0.0.1", "u", -4)
    assert request.truncate_prompt_tokens == -1


async def test_a_text_whose_server_died_is_asked_again(gateway: Any) -> None:
    embed, deaths = gateway.tokenizer.embed, {"b": 2}

    async def mortal(request: Any, context: Any) -> Any:
        if deaths.get(request.text):
            deaths[request.text] -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "killed", (("quire-lost", "tokenizer-1"),))
        return await embed(request, context)

    gateway.tokenizer.embed = mortal
    answer = await gateway.openai().embeddings.create(model="m", input=["a", "b", "cc"])
    assert [one.embedding[0] for one in answer.data] == [1, 1, 2]
    assert sorted(request.text for request in gateway.tokenizer.texts) == ["a", "b", "b", "b", "cc"]
    attempts = [each.get("quire-attempt") for each in gateway.tokenizer.metadata]
    assert sorted(filter(None, attempts)) == ["1", "2"]


@pytest.mark.parametrize(
    ("code", "trailing", "status", "param"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, (("quire-param", "prompt"),), 400, "input"),
        (grpc.StatusCode.INVALID_ARGUMENT, (("quire-param", "dimensions"),), 400, "dimensions"),
        (grpc.StatusCode.OUT_OF_RANGE, (("quire-param", "prompt"),), 400, "input"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, (("quire-retry-after", "7"),), 429, None),
        (grpc.StatusCode.INTERNAL, (), 500, None),
    ],
)
async def test_errors(gateway: Any, code: Any, trailing: Any, status: int, param: str | None) -> None:
    async def refuse(request: Any, context: Any) -> Any:
        if request.text == "b" or code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            await context.abort(code, "no", trailing)
        await asyncio.Event().wait()

    gateway.tokenizer.embed = refuse
    answer = await gateway.http.post(PATH, json={"model": "m", "input": ["a", "b"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert status != 429 or answer.headers["retry-after"] == "7"
    if status != 429:  # the other text is computed in vain
        await asyncio.wait_for(gateway.tokenizer.cancelled.wait(), 60)


async def test_time_is_limited(gateway: Any) -> None:
    async def forever(request: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    gateway.tokenizer.embed = forever
    answer = await gateway.http.post(PATH, json={"model": "m", "input": "a", "timeout": 0.2})
    assert answer.status_code == 504


async def test_a_gateway_that_stops_ends_them(gateway: Any) -> None:
    begun = asyncio.Event()

    async def forever(request: Any, context: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    gateway.tokenizer.embed = forever
    asking = asyncio.create_task(gateway.http.post(PATH, json={"model": "m", "input": ["a", "b"]}))
    await begun.wait()
    gateway.app.state.generator.stop()
    assert (await asking).status_code == 503


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": ["a", 5]}, "input[1]", "invalid_type"),
        ({"input": [[1], []]}, "input[1]", "invalid_value"),
        ({"input": [1, "a"]}, "input[1]", "invalid_type"),
        ({"input": [2**31]}, "input[0]", "invalid_value"),
        ({"input": ["a"] * 2049}, "input", "invalid_value"),
        ({"input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
        ({"input": "a", "dimensions": "3"}, "dimensions", "invalid_type"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"input": "a", "pooling": "max"}, "pooling", "invalid_value"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
        ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "invalid_value"),
    ],
)
async def test_wrong_input(refusing: Any, fields: dict[str, Any], param: str, code: str) -> None:
    answer = await refusing.post(PATH, content=json.dumps({"model": "m", **fields}))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


async def test_a_model_that_is_not_there(refusing: Any) -> None:
    answer = await refusing.post(PATH, json={"model": "x", "input": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
