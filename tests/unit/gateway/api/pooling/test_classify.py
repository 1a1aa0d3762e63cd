"""POST /v1/classify, and /v1/score and /v1/rerank with a cross-encoder. The fake tokenizer gives each text a
score for its length."""

import struct
from typing import Any

import grpc
import pytest

from gateway.api.pooling.answer_schema import Classification, Ranking, Scores
from gateway.api.pooling.rank_schema import MAX_PAIR_CHARACTERS
from proto.sampling_pb2 import CLASSIFY
from proto.tokenizer_pb2 import EmbedRequest, EmbedResponse
from tests.unit.gateway.conftest import Gateway

ASK = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/chat/completions, streamed": {"messages": [{"role": "user", "content": "a"}], "stream": True},
    "/v1/responses": {"input": "a", "store": False},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
    "/v1/embeddings": {"input": "a"},
    "/pooling": {"input": "a"},
    "/api/chat": {"messages": [{"role": "user", "content": "a"}]},
}


async def length_of(request: EmbedRequest, context: Any) -> EmbedResponse:
    """Numbers of two labels, or for a pair the length of the document alone."""
    if request.HasField("pair"):
        length = len(request.pair.document)
        return EmbedResponse(embedding=struct.pack("<f", length), tokens=length, label="LABEL_0")
    length = len(request.text) or len(request.tokens.ids) or len(request.chat.messages)
    return EmbedResponse(embedding=struct.pack("<2f", length, 1 / 3), tokens=length, label="gut ❄")


@pytest.fixture
def classifier(gateway: Gateway) -> Gateway:
    """A gateway whose model is a classifier with two labels."""
    return with_labels(gateway, 2)


@pytest.fixture
def cross_encoder(gateway: Gateway) -> Gateway:
    return with_labels(gateway, 1)


def with_labels(gateway: Gateway, count: int) -> Gateway:
    gateway.backend.lease_list[0].info["num_labels"] = count
    gateway.tokenizer.embed = length_of
    return gateway


@pytest.mark.parametrize("path", ["/v1/classify", "/classify"])
async def test_texts_in_the_shape_of_vllm(classifier: Gateway, path: str) -> None:
    answer = await classifier.http.post(path, json={"model": "m", "input": ["four", "six of"]})
    found = Classification.model_validate(answer.json(), strict=True)
    assert found.id == f"classify-{answer.headers['x-request-id']}"
    assert [(one.index, one.label, one.num_classes) for one in found.data] == [
        (0, "gut ❄", 2),
        (1, "gut ❄", 2),
    ]
    assert [one.probs for one in found.data] == [[length, pytest.approx(1 / 3)] for length in (4, 6)]
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (10, 10)
    assert {(one.pooling, one.raw) for one in classifier.tokenizer.texts} == {(CLASSIFY, False)}


async def test_tokens_and_logits(classifier: Gateway) -> None:
    ask = {"model": "m", "input": [5, 6, 7], "use_activation": False, "user": "u", "priority": 3}
    assert (await classifier.http.post("/v1/classify", json=ask)).status_code == 200
    (asked,) = classifier.tokenizer.texts
    assert (list(asked.tokens.ids), asked.raw, asked.user, asked.priority) == ([5, 6, 7], True, "u", 3)


async def test_a_conversation(classifier: Gateway) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ask = {"model": "m", "messages": messages, "chat_template_kwargs": {"x": 1}}
    assert (await classifier.http.post("/v1/classify", json=ask)).status_code == 200
    (asked,) = classifier.tokenizer.texts
    assert [(one.role, one.content) for one in asked.chat.messages] == [("user", "a"), ("assistant", "b")]
    assert (asked.chat.no_generation_prompt, asked.chat.template_arguments) == (True, '{"x":1}')


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_a_cross_encoder_ranks(cross_encoder: Gateway, path: str) -> None:
    ask = {"model": "m", "query": "q", "documents": ["four", {"text": "of ten let"}, "six of"], "top_n": 2}
    found = Ranking.model_validate((await cross_encoder.http.post(path, json=ask)).json(), strict=True)
    assert [(one.index, one.relevance_score) for one in found.results] == [(1, 10.0), (2, 6.0)]
    assert found.usage.prompt_tokens == 20
    asked = cross_encoder.tokenizer.texts
    assert {(one.pair.query, one.pair.document) for one in asked} == {
        ("q", "four"),
        ("q", "of ten let"),
        ("q", "six of"),
    }
    assert {(one.pooling, one.raw) for one in asked} == {(CLASSIFY, False)}


@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("q", ["a", "bb"], [("q", "a"), ("q", "bb")]),
        (["q", "r"], ["a", "bb"], [("q", "a"), ("r", "bb")]),
    ],
)
@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_a_cross_encoder_scores(
    cross_encoder: Gateway, path: str, first: Any, second: Any, pairs: list[tuple[str, str]]
) -> None:
    ask = {"model": "m", "text_1": first, "text_2": second, "use_activation": False}
    ask["truncate_prompt_tokens"] = 9
    found = Scores.model_validate((await cross_encoder.http.post(path, json=ask)).json(), strict=True)
    assert [(one.index, one.score) for one in found.data] == [(0, 1.0), (1, 2.0)]
    asked = cross_encoder.tokenizer.texts
    assert {(one.pair.query, one.pair.document) for one in asked} == set(pairs)
    assert {(one.raw, one.truncate_prompt_tokens) for one in asked} == {(True, 9)}


@pytest.mark.parametrize("ask", ASK)
@pytest.mark.parametrize("labels", [1, 2])
async def test_a_classifier_does_nothing_else(gateway: Gateway, ask: str, labels: int) -> None:
    with_labels(gateway, labels)
    answer = await gateway.http.post(ask.partition(",")[0], json={"model": "m", **ASK[ask]})
    assert answer.status_code == 400, answer.text
    assert "classifies texts (use '/v1/classify'" in answer.text
    assert ("'/v1/rerank'" in answer.text) == (labels == 1)
    assert gateway.tokenizer.requests == gateway.tokenizer.texts == []


async def test_other_models_classify_nothing(gateway: Gateway) -> None:
    answer = await gateway.http.post("/v1/classify", json={"model": "m", "input": "a"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert answer.json()["error"]["message"] == "The model 'm' has no classification head."


@pytest.mark.parametrize("fields", [{"text_1": "a", "text_2": "b"}, {"query": "a", "documents": ["b"]}])
async def test_several_labels_score_no_pairs(classifier: Gateway, fields: dict[str, Any]) -> None:
    path = "/v1/score" if "text_1" in fields else "/v1/rerank"
    answer = await classifier.http.post(path, json={"model": "m", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert "has 2 labels: a cross-encoder has one" in answer.text


async def test_a_query_that_many_documents_make_long(cross_encoder: Gateway) -> None:
    query = "q" * (MAX_PAIR_CHARACTERS // 512)
    ask = {"model": "m", "query": query, "documents": ["d"] * 512}
    answer = await cross_encoder.http.post("/v1/rerank", json=ask)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "documents")
    assert cross_encoder.tokenizer.texts == []


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"query": "too long", "documents": ["a", "b"]}, "query"),
        ("/v1/rerank", {"query": "q", "documents": ["a", "too long"]}, "documents"),
        ("/v1/rerank", {"query": "too long", "documents": ["too long"]}, "documents"),
        ("/v1/score", {"text_1": ["a", "too long"], "text_2": ["b", "c"]}, "text_1"),
        ("/v1/score", {"text_1": "too long", "text_2": ["b", "c"]}, "text_1"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "too long"]}, "text_2"),
    ],
)
async def test_a_pair_is_too_long_because_of_its_longer_text(
    cross_encoder: Gateway, path: str, fields: dict[str, Any], param: str
) -> None:
    embed = cross_encoder.tokenizer.embed

    async def refuse(request: Any, context: Any) -> Any:
        if "too long" in (request.pair.query, request.pair.document):
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "it is too long", (("quire-param", "prompt"),))
        return await embed(request, context)

    cross_encoder.tokenizer.embed = refuse
    answer = await cross_encoder.http.post(path, json={"model": "m", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_a_cross_encoder_pools_nothing(cross_encoder: Gateway) -> None:
    ask = {"model": "m", "text_1": "a", "text_2": "b", "pooling": "mean"}
    answer = await cross_encoder.http.post("/v1/score", json=ask)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "pooling")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", [1]]}, "input[1]"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input"),
        ({"messages": []}, "messages"),
        ({"input": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"input": "a", "use_activation": "no"}, "use_activation"),
        (
            {"messages": [{"role": "user", "content": "a"}], "truncate_prompt_tokens": 5},
            "truncate_prompt_tokens",
        ),
    ],
)
async def test_what_is_refused(refusing: Any, fields: dict[str, Any], param: str) -> None:
    answer = await refusing.post("/v1/classify", json={"model": "m", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("ask", ASK)
async def test_an_encoder_generates_nothing(gateway: Gateway, ask: str) -> None:
    gateway.backend.lease_list[0].info["bidirectional"] = True
    answer = await gateway.http.post(ask.partition(",")[0], json={"model": "m", **ASK[ask]})
    if ask in ("/v1/embeddings", "/pooling"):
        assert answer.status_code == 200
        return
    assert answer.status_code == 400, answer.text
    assert "embeds texts (use '/v1/embeddings') and generates none" in answer.text
    assert gateway.tokenizer.requests == []


@pytest.mark.parametrize(
    ("told", "generates", "capabilities"),
    [
        ({}, True, ["completion"]),
        ({"calls": True}, True, ["completion", "tools"]),
        ({"thoughts": True}, True, ["completion", "thinking"]),
        (
            {"images": True, "calls": True, "thoughts": True},
            True,
            ["completion", "tools", "thinking", "vision"],
        ),
        ({"bidirectional": True}, False, ["embedding"]),
        ({"bidirectional": True, "num_labels": 1}, False, []),
    ],
)
async def test_models_say_whether_they_generate(
    gateway: Gateway, told: dict[str, Any], generates: bool, capabilities: list[str]
) -> None:
    gateway.backend.lease_list[0].info.update(told)
    assert (await gateway.http.get("/v1/models/m")).json()["generates"] is generates
    shown = await gateway.http.post("/api/show", json={"model": "m"})
    assert shown.json()["capabilities"] == capabilities


async def test_a_model_without_a_head_generates_nothing(gateway: Gateway) -> None:
    """Its workers know, and their schedulers tell."""
    gateway.backend.lease_list[1].info["headless"] = True
    assert (await gateway.http.get("/v1/models/m")).json()["generates"] is False
    answer = await gateway.http.post("/v1/completions", json={"model": "m", "prompt": "x"})
    assert answer.status_code == 400
    assert "embeds texts (use '/v1/embeddings') and generates none" in answer.text
    assert (await gateway.http.post("/v1/embeddings", json={"model": "m", "input": "x"})).status_code == 200


async def test_models_say_what_they_are_for(classifier: Gateway) -> None:
    assert (await classifier.http.get("/v1/models/m")).json()["num_labels"] == 2
    shown = await classifier.http.post("/api/show", json={"model": "m"})
    assert shown.json()["capabilities"] == []
