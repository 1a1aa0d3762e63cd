"""POST /v1/rerank and /v1/score. The fake tokenizer embeds a text as its length and a third."""

import math
import random
import struct

import grpc
import pytest

from gateway.api.pooling.answer_schema import Ranking, Scores
from gateway.api.pooling.rank import AT_ONCE, best, cosines

DOCUMENTS = ["four", {"text": "of ten let"}, "six of"]


def expected(*lengths):
    """What the fake's embeddings give: they are not of length 1, so this is a product alone."""
    return [pytest.approx(5 * length + 1 / 9) for length in lengths]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_documents_are_ordered(gateway, path):
    ask = {"model": "m", "query": "query", "documents": DOCUMENTS}
    answer = await gateway.http.post(path, json=ask)
    found = Ranking.model_validate(answer.json(), strict=True)
    assert [one.index for one in found.results] == [1, 2, 0]
    assert [one.relevance_score for one in found.results] == expected(10, 6, 4)
    assert [one.document.text for one in found.results] == ["of ten let", "six of", "four"]
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (25, 25)
    assert found.id == f"rerank-{answer.headers['x-request-id']}"


async def test_the_best_ones_without_their_texts(gateway):
    ask = {"model": "m", "query": "query", "documents": DOCUMENTS, "top_n": 2, "return_documents": False}
    answer = await gateway.http.post("/v1/rerank", json=ask)
    assert [one["index"] for one in answer.json()["results"]] == [1, 2]
    assert all(one.keys() == {"index", "relevance_score"} for one in answer.json()["results"])


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("query", "four", [21]),
        ("query", ["four", "six of"], [21, 31]),
        (["query", "to"], ["four", "six of"], [21, 13]),
        (["query"], ["four"], [21]),
    ],
)
async def test_pairs(gateway, first, second, found):
    answer = await gateway.http.post("/score", json={"model": "m", "text_1": first, "text_2": second})
    scores = Scores.model_validate(answer.json(), strict=True)
    products = [pytest.approx(value - 1 + 1 / 9) for value in found]
    assert [(one.index, one.score) for one in scores.data] == list(enumerate(products))


@pytest.mark.parametrize(
    ("first", "second"), [("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
async def test_pairs_by_other_names(gateway, first, second):
    answer = await gateway.http.post(
        "/score", json={"model": "m", first: "query", second: ["four", "six of"]}
    )
    assert [one["score"] for one in answer.json()["data"]] == expected(4, 6)
    assert "x-quire-ignored" not in answer.headers


async def test_an_empty_text_is_one_among_others(gateway):
    """Whether it has tokens, the tokenizer knows: special ones are some."""
    for path, fields in (
        ("/v1/rerank", {"query": "query", "documents": ["", "four"]}),
        ("/v1/score", {"text_1": "query", "text_2": ["", "four"]}),
    ):
        assert (await gateway.http.post(path, json={"model": "m", **fields})).status_code == 200
        assert {one.text for one in gateway.tokenizer.texts} == {"query", "", "four"}
        assert all(one.WhichOneof("input") == "text" for one in gateway.tokenizer.texts)


async def test_what_has_no_effect_is_named(gateway):
    ask = {"model": "m", "query": "query", "documents": ["four"], "max_tokens_per_doc": 5}
    answer = await gateway.http.post("/v2/rerank", json=ask)
    assert answer.headers["x-quire-ignored"] == "max_tokens_per_doc"


async def test_what_is_asked_goes_with_the_texts(gateway):
    ask = {"model": "m", "text_1": "a", "text_2": "b", "pooling": "mean", "user": "u", "priority": 3}
    ask["truncate_prompt_tokens"] = 7
    assert (await gateway.http.post("/v1/score", json=ask)).status_code == 200
    asked = gateway.tokenizer.texts
    assert {one.text for one in asked} == {"a", "b"}
    assert {(one.pooling, one.user, one.priority, one.truncate_prompt_tokens) for one in asked} == {
        (1, "u", 3, 7)
    }


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": "b"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 1025}, "documents"),
        ("/v1/score", {"text_1": "a"}, "text_2"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ("/v1/score", {"text_1": 3, "text_2": ["c"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/score", {"data_1": "a", "queries": "b"}, "text_2"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "pooling": "max"}, "pooling"),
    ],
)
async def test_what_is_refused(refusing, path, fields, param):
    answer = await refusing.post(path, json={"model": "m", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_cosines_are_those_of_plain_arithmetic():
    draw = random.Random(1)
    vectors = [[draw.uniform(-1, 1) for _ in range(24)] for _ in range(2 * AT_ONCE + 3)]
    vectors = [[part / math.hypot(*one) for part in one] for one in vectors]
    packed = [struct.pack("<24f", *one) for one in vectors]
    pairs = [(0, number) for number in range(1, len(vectors))]
    found = await cosines(packed, pairs)
    for (one, other), cosine in zip(pairs, found, strict=True):
        plain = sum(a * b for a, b in zip(vectors[one], vectors[other], strict=True))
        assert cosine == pytest.approx(plain, abs=1e-6)


def test_the_best_come_first_and_of_equals_the_earlier():
    assert best([0.1, 0.5, 0.5, -1.0], None) == [1, 2, 0, 3]
    assert best([0.1, 0.5, 0.5, -1.0], 2) == [1, 2]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"query": "q", "documents": ["a", "too long"]}, "documents"),
        ("/v1/rerank", {"query": "too long", "documents": ["a", "b"]}, "query"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["too long", "c"]}, "text_2"),
        ("/v1/score", {"text_1": ["a", "too long"], "text_2": ["b", "c"]}, "text_1"),
    ],
)
async def test_a_text_that_is_refused_is_of_its_field(gateway, path, fields, param):
    embed = gateway.tokenizer.embed

    async def refuse(request, context):
        if request.text == "too long":
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "it is too long", (("quire-param", "prompt"),))
        return await embed(request, context)

    gateway.tokenizer.embed = refuse
    error = (await gateway.http.post(path, json={"model": "m", **fields})).json()["error"]
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
