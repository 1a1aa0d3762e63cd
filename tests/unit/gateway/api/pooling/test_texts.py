"""/embed, /info, and /rerank with `texts`. The fake tokenizer embeds a text as its length and a third."""

import pytest

from gateway.api.pooling.answer_schema import AnyRanking, TextModelInfo, TextVectors
from tests.unit.gateway.api.pooling.test_classify import with_labels

TEXTS = ["four", "of ten let", "six of"]


async def test_texts_are_embedded(gateway):
    for inputs, lengths in ((TEXTS, [4, 10, 6]), ("four", [4]), ([1, 2, 3], [3]), ([[1], [2, 3]], [1, 2])):
        answer = await gateway.http.post("/embed", json={"inputs": inputs})
        assert answer.status_code == 200, answer.text
        found = TextVectors.model_validate(answer.json(), strict=True).root
        assert found == [[length, pytest.approx(1 / 3)] for length in lengths]


async def test_parameters_of_embed(gateway):
    ask = {"inputs": "four", "normalize": False, "truncation_direction": "Right", "dimensions": 1}
    answer = await gateway.http.post("/embed", json=ask)
    assert (answer.status_code, answer.headers.get("x-quire-ignored")) == (200, None)
    await gateway.http.post("/embed", json=ask | {"truncate": True})
    first, second = gateway.tokenizer.texts
    assert (first.truncate_prompt_tokens, first.dimensions) == (0, 1)
    assert second.truncate_prompt_tokens == -1


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/embed", {}, "'inputs'"),
        ("/embed", {"inputs": []}, "'inputs' is empty"),
        ("/embed", {"inputs": ["a", 1]}, "all text or all token ids"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, "'prompt_name' is not supported"),
        ("/embed", {"inputs": "a", "truncation_direction": "left"}, "'truncation_direction'"),
    ],
)
async def test_what_is_refused(refusing, path, fields, said):
    answer = await refusing.post(path, json={"model": "m", **fields})
    error = answer.json()
    assert (answer.status_code, error.keys(), error["error_type"]) == (
        400,
        {"error", "error_type"},
        "Validation",
    )
    assert said in error["error"]


async def test_texts_are_ranked(gateway):
    ask = {"query": "query", "texts": TEXTS, "raw_scores": False, "truncate": True}
    answer = await gateway.http.post("/rerank", json=ask)
    assert (answer.status_code, answer.headers.get("x-quire-ignored")) == (200, None), answer.text
    found = AnyRanking.model_validate(answer.json(), strict=True).root
    scores = [pytest.approx(5 * length + 1 / 9) for length in (10, 6, 4)]
    assert [(one.index, one.score, one.text) for one in found] == [
        (index, score, None) for index, score in zip((1, 2, 0), scores, strict=True)
    ]
    assert {one.truncate_prompt_tokens for one in gateway.tokenizer.texts} == {-1}
    answer = await gateway.http.post("/rerank", json=ask | {"return_text": True})
    assert [one["text"] for one in answer.json()] == ["of ten let", "six of", "four"]


@pytest.mark.parametrize("raw", [True, False])
async def test_raw_scores_of_a_cross_encoder(gateway, raw):
    cross_encoder = with_labels(gateway, 1)
    ask = {"query": "query", "texts": TEXTS, "raw_scores": raw}
    answer = (await cross_encoder.http.post("/rerank", json=ask)).json()
    assert [(one["index"], one["score"]) for one in answer] == [(1, 10), (2, 6), (0, 4)]
    assert {one.raw for one in gateway.tokenizer.texts} == {raw}
    assert (await gateway.http.get("/info")).json()["model_type"] == {"reranker": {}}


async def test_documents_or_texts(refusing):
    for fields in ({}, {"documents": ["a"], "texts": ["b"]}):
        answer = await refusing.post("/rerank", json={"model": "m", "query": "a", **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "documents")
    answer = await refusing.post("/rerank", json={"model": "m", "query": "a", "texts": [1]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "texts[0]")


async def test_what_the_model_is(gateway):
    for path in ("/info", "/info?model=m"):
        answer = await gateway.http.get(path)
        found = TextModelInfo.model_validate(answer.json(), strict=True)
        assert (found.model_id, found.max_input_length, answer.json()["model_type"]) == (
            "m",
            2048,
            {"embedding": {}},
        )
    answer = await gateway.http.get("/info?model=other")
    assert (answer.status_code, answer.json()["error_type"]) == (404, "Validation")
