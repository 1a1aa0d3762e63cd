"""What clients write: bodies of HTTP requests at the gateway, and what becomes of them at the tokenizer."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
from google.protobuf.message import DecodeError

from gateway.api.common.body import parse
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.completions_schema import CompletionBody
from gateway.api.openai.translate import chat_requests, completion_requests
from gateway.api.pooling.classify_schema import ClassifyBody
from gateway.api.pooling.embeddings_schema import EmbeddingBody
from gateway.api.pooling.rank_schema import RerankBody
from gateway.api.pooling.translate import classify_requests, embedding_requests, pair_requests
from gateway.errors import GatewayError
from gateway.http.caller import Caller
from ops.model_directory.classifier import Classifier
from ops.model_directory.settings import SHIPPED_MODEL
from proto import arrays
from proto.rpc import Lease
from proto.sampling import greedy
from proto.sampling_pb2 import CLASSIFY, FinishReason
from proto.scheduler_pb2 import GenerateResponse, SequenceDelta, TokenLogprobs
from proto.tokenizer_pb2 import (
    ChatMessage,
    Conversation,
    EmbedRequest,
    TextPair,
    TextRequest,
    TextSoFar,
)
from tests.support.mutate import cases, spoiled, spoiled_json
from tests.unit.gateway.conftest import JSON, NoTokenizer, app_of, leases_of
from tokenizer_svc.answers.generation import Generation
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.formats.formats import Formats
from tokenizer_svc.model.defaults import fill_in
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.embedding import tokens_request
from tokenizer_svc.requests.prompt import check, prompt_tokens

COMPLETION = {
    "model": "m",
    "prompt": ["a", "b"],
    "n": 2,
    "best_of": 3,
    "stop": ["x"],
    "logprobs": 2,
    "logit_bias": {"5": 1.5},
    "temperature": 0.7,
    "max_tokens": 7,
    "seed": 3,
    "stop_token_ids": [1],
    "user": "u",
    "stream": True,
    "stream_options": {"include_usage": True},
}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}], "name": "n"},
    ],
    "chat_template_kwargs": {"enable_thinking": False},
    "logprobs": True,
    "top_logprobs": 2,
    "response_format": {"type": "text"},
    "max_completion_tokens": 5,
}
EMBEDDING = {"model": "m", "input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 3}
CLASSIFICATION = {"model": "m", "messages": CHAT["messages"], "use_activation": False}
RANKING = {"model": "m", "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1, "user": "u"}


def test_bodies() -> None:
    """A body becomes requests, or is refused with a status that says so."""
    kinds: list[tuple[dict[str, Any], Any, Any]] = [
        (COMPLETION, CompletionBody, completion_requests),
        (CHAT, ChatBody, chat_requests),
        (EMBEDDING, EmbeddingBody, embedding_requests),
        (CLASSIFICATION, ClassifyBody, classify_requests),
        (RANKING, RerankBody, pair_requests),
    ]
    for of in cases("body"):
        good, kind, translate = of.choice(kinds)
        refusal: GatewayError | None = None
        try:
            for request in translate(parse(spoiled_json(of, good, text=False), kind), "request-1", Caller()):
                request.SerializeToString()
        except GatewayError as error:
            refusal = error
        if refusal is not None:
            assert 400 <= refusal.status < 500
            json.loads(refusal.body())


class TwoModels(NoTokenizer):
    """Whoever names no model is refused, too."""

    async def leases(self) -> list[Lease]:
        return leases_of("m") + leases_of("other")


async def test_requests_over_http() -> None:
    """Nothing that a client sends is the gateway's fault."""
    transport = httpx.ASGITransport(app_of(TwoModels()), raise_app_exceptions=False)
    bodies = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT, "/v1/embeddings": EMBEDDING}
    bodies |= {"/v1/classify": CLASSIFICATION, "/v1/rerank": RANKING}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=JSON) as http:
        for of in cases("HTTP"):
            path = of.choice(list(bodies))
            body = spoiled_json(of, {**bodies[path], "model": "nobody", "stream": False}, text=False)
            name = of.choice(("x", "X-Request-Id", "Authorization", "Traceparent"))
            headers = {name: of.choice(("²", "", "a" * 9000)).encode()}
            response = await http.post(path, content=body, headers=headers)
            assert 400 <= response.status_code < 500, (response.status_code, body)
            assert response.json()["error"]["message"]


@pytest.fixture(scope="module")
def model() -> TextModel:
    if not (SHIPPED_MODEL / "tokenizer.json").exists():
        pytest.skip("the model that ships has not been made")
    return TextModel.load(SHIPPED_MODEL)


@contextmanager
def may_be_refused() -> Iterator[None]:
    """A request that cannot be read, or is refused with the parameter at fault, is as good as one that is
    served."""
    at_fault = "none"
    try:
        yield
    except DecodeError:
        pass
    except InvalidRequestError as error:
        at_fault = error.param
    assert at_fault


async def test_texts_for_a_classifier(model: TextModel) -> None:
    """A text becomes a call of the scheduler, or is refused with the parameter at fault."""
    classifier = replace(model, classifier=Classifier(("no", "yes"), "softmax"))
    chat = Conversation(messages=[ChatMessage(role="user", content="hi")], template_arguments="{}")
    asked = [
        EmbedRequest(request_id="r", pair=TextPair(query="hello", document="world"), pooling=CLASSIFY),
        EmbedRequest(request_id="r", chat=chat, pooling=CLASSIFY, raw=True),
    ]
    for of in cases("classification"):
        with may_be_refused():
            request = EmbedRequest.FromString(spoiled(of, of.choice(asked)))
            async with asyncio.timeout(60):
                made = await tokens_request(classifier, request)
            assert all(0 <= token < model.vocab_size for token in arrays.unpack(made.tokens))
            assert made.tokens


async def test_text_requests(model: TextModel) -> None:
    """A request becomes a call of the scheduler, or is refused with the parameter at fault."""
    common = {"request_id": "r", "n": 1, "sampling": greedy(), "max_tokens": 5, "stop": ["x"]}
    so_far = [TextSoFar(index=0, token_ids=[5, 6], text_length=1)]
    chat = Conversation(messages=[ChatMessage(role="user", content="hi")], template_arguments="{}")
    asked = [TextRequest(**common, text="hello world"), TextRequest(**common, chat=chat, resumed=so_far)]
    formats = Formats(model)
    for of in cases("text request"):
        with may_be_refused():
            request = TextRequest.FromString(spoiled(of, of.choice(asked)))
            fill_in(request, model.defaults)
            check(model, request)
            async with asyncio.timeout(60):
                tokens = await prompt_tokens(model, request)
            generation = Generation(model, request, tokens, formats)
            generation.resume()
            assert generation.opening()[0].start.prompt_tokens == arrays.pack(tokens) != b""


def test_answers_of_schedulers(model: TextModel) -> None:
    """Whatever a scheduler says, it ends its own request at most."""
    tokens = model.encode("hello world", special=False)
    delta = SequenceDelta(index=0, tokens=arrays.pack(tokens), finish_reason=FinishReason.LENGTH)
    for token in tokens:
        top = TokenLogprobs(logprob=-1, top_tokens=arrays.pack([token, 0]))
        top.top_logprobs = arrays.pack([-1.0, -2.0], arrays.FLOAT32)
        delta.logprobs.append(top)
    good = GenerateResponse(deltas=[delta], cached_tokens=1)
    request = TextRequest(request_id="r", n=1, sampling=greedy(), text="hello", max_tokens=9)
    formats = Formats(model)
    _, usual = Generation(model, request, tokens, formats).take(good)
    for of in cases("answer"):
        with suppress(Exception):
            Generation(model, request, tokens, formats).take(GenerateResponse.FromString(spoiled(of, good)))
        other, ended = Generation(model, request, tokens, formats).take(good)
        assert other is not None
        assert (other.deltas[0].text, ended) == ("hello world", usual)
