"""The document has every answer: of each operation that of success, and those of its errors."""

import json

import httpx
import pytest

from gateway.api.openai.answer_schema import ChatCompletionChunk, CompletionChunk
from gateway.http.meter import RATE_HEADERS, _headers
from ops.runtime.limits import Limits
from tests.unit.gateway.conftest import JSON, app_of

POSTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize")
POSTS += (
    "/v1/rerank",
    "/rerank",
    "/infill",
    "/completion",
    "/v1/fim/completions",
    "/v1/score",
    "/v1/classify",
    "/v1/responses",
    "/pooling",
)
GETS = (
    *("/v1/models", "/v1/models/{name}", "/health", "/health/live", "/health/ready"),
    *("/ping", "/load", "/version"),
)
STORED = ("/v1/responses/{response_id}", "/v1/responses/{response_id}/input_items")
MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")
TEXTS = ("/embed",)
OLLAMA = ("/api/chat", "/api/generate", "/api/embed", "/api/show")
ERROR = {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}
EVERYWHERE = {"400", "403", "408", "429", "431", "500", "503"}


@pytest.fixture
async def document(refusing):
    return (await refusing.get("/openapi.json")).json()


async def test_a_post_has_the_errors_that_it_may_end_with(document):
    statuses = EVERYWHERE | {"401", "404", "413", "415", "504"}
    own = dict.fromkeys(MESSAGES, "AnthropicError") | dict.fromkeys(OLLAMA, "OllamaError")
    own |= dict.fromkeys(TEXTS, "TextsError")
    for path in (*POSTS, *MESSAGES, *OLLAMA, *TEXTS):
        answers = document["paths"][path]["post"]["responses"]
        assert answers.keys() == {"200", *statuses}, path
        error = ERROR
        if (name := own.get(path)) is not None:
            error = {"schema": {"anyOf": [{"$ref": f"#/components/schemas/{name}"}, ERROR["schema"]]}}
        for status in statuses:
            assert answers[status]["content"] == {"application/json": error}, (path, status)
            assert len(answers[status]["description"]) > 20


async def test_what_is_got_has_no_errors_of_bodies_and_none_of_keys_that_it_does_not_need(document):
    beyond = {"/load": {"401"}, "/v1/models": {"401"}}
    beyond |= {path: {"401", "404"} for path in ("/v1/models/{name}", *STORED)}
    for path in (*GETS, *STORED):
        answers = document["paths"][path]["get"]["responses"]
        assert answers.keys() == {"200"} | EVERYWHERE | beyond.get(path, set()), path
    unready = document["paths"]["/health/ready"]["get"]["responses"]["503"]["content"]["application/json"]
    assert unready["schema"]["anyOf"] == [{"$ref": "#/components/schemas/Readiness"}, ERROR["schema"]]


async def test_every_answer_has_a_type(document):
    def answers():
        for operations in document["paths"].values():
            for operation in operations.values():
                yield from operation["responses"]["200"]["content"].values()

    names = {content["schema"].get("$ref", "").rpartition("/")[2] for content in answers()}
    assert names - {""} == {
        *(
            "Completion",
            "ChatCompletion",
            "EmbeddingList",
            "PooledList",
            "Tokens",
            "Detokenized",
            "Ranking",
            "Scores",
            "Classification",
        ),
        *("MessageAnswer", "Count", "ResponseAnswer", "InputItems", "InputTokens", "DeletedResponse"),
        *(
            "OllamaChatAnswer",
            "OllamaGenerated",
            "OllamaModels",
            "OllamaShown",
            "OllamaEmbedding",
            "OllamaEmbeddings",
            "OllamaVersion",
        ),
        *("KserveServer", "KserveLive", "KserveReady", "KserveModelReady", "KserveModel", "InferAnswer"),
        *("FileObject", "FileList", "DeletedFile", "BatchObject", "BatchList"),
        *("LlamaText", "AnyRanking", "TextVectors", "TextModelInfo"),
        *("LocalModel", "LocalModels", "Properties"),
        *("ModelList", "ModelObject", "Liveness", "Load", "Version", "Readiness"),
    }
    assert names - {""} <= document["components"]["schemas"].keys()


async def test_the_headers_of_errors_are_documented(document):
    post = document["paths"]["/v1/completions"]["post"]["responses"]
    for status, response in post.items():
        counted = status not in ("401", "403", "408", "415", "431")
        assert (response["headers"].keys() >= set(RATE_HEADERS)) == counted, status
        assert "X-Request-Id" in response["headers"]
    has = {
        name: {status for status, response in post.items() if name in response["headers"]}
        for name in ("Retry-After", "WWW-Authenticate", "X-Should-Retry")
    }
    assert has == {
        "Retry-After": {"429", "503"},
        "WWW-Authenticate": {"401"},
        "X-Should-Retry": {"500", "504"},
    }


def test_all_headers_of_limits_are_named():
    found = _headers(Limits(requests_per_minute=3, tokens_per_minute=5), "2", "1.5", "4", "2e-05")
    assert list(found) == RATE_HEADERS
    assert found["x-ratelimit-reset-tokens"] == "2e-05s"


BAD = [
    ("POST", "/v1/completions", {"content": b"{"}),
    ("POST", "/v1/completions", {"json": {"model": "none", "prompt": "A", "colour": "red"}}),
    ("POST", "/v1/completions", {"json": {"model": "none", "prompt": "A"}}),
    ("POST", "/v1/completions", {"content": b"{}", "headers": {"Content-Encoding": "gzip"}}),
    ("POST", "/v1/completions", {"content": b"{}", "headers": {"Content-Encoding": "br"}}),
    ("POST", "/v1/completions", {"content": b"{}", "headers": {"Content-Type": "text/plain"}}),
    ("POST", "/v1/completions", {"content": b" " * 30_000_000}),
    ("POST", "/v1/completions", {"json": {}, "headers": {"Authorization": "Bearer none"}}),
    ("GET", "/v1/models", {"headers": {"Authorization": "Bearer none"}}),
    ("GET", "/v1/models", {"headers": {"Host": "example.com"}}),
]


@pytest.mark.parametrize(("method", "path", "ask"), BAD)
async def test_what_is_sent_with_an_error_is_documented(document, refusing, keys_of, method, path, ask):
    client = refusing
    if "Authorization" in ask.get("headers", {}):
        transport = httpx.ASGITransport(
            app_of(refusing._transport.app.state.generator._backend, keys_of({"sk": "a"}))
        )
        client = httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=JSON)
    answer = await client.request(method, path, **ask)
    assert answer.status_code >= 400
    known = document["paths"][path][method.lower()]["responses"][str(answer.status_code)]["headers"]
    sent = answer.headers.keys() - {"content-type", "content-length"}
    assert sent <= {name.lower() for name in known}
    assert ("x-quire-ignored" in sent) == ("colour" in ask.get("json", {}))


async def test_what_is_generated_is_an_object_or_a_stream(document):
    for path, event in zip(POSTS[:2], ("ChatCompletionChunk", "CompletionChunk"), strict=True):
        content = document["paths"][path]["post"]["responses"]["200"]["content"]
        assert content.keys() == {"application/json", "text/event-stream"}, path
        end, piece = content["text/event-stream"]["schema"]["properties"]["data"]["anyOf"]
        assert end == {"const": "[DONE]"}
        assert piece["contentSchema"]["anyOf"][0] == {"$ref": f"#/components/schemas/{event}"}
        assert event in document["components"]["schemas"]
    assert "text/event-stream" not in str(document["paths"]["/v1/embeddings"])


EXTRAS = [{}, {"return_token_ids": True, "n": 2, "stream_options": {"include_usage": True}}]


@pytest.mark.parametrize("extras", [*EXTRAS, EXTRAS[1] | {"logprobs": 2}])
async def test_events_have_their_types(gateway, extras):
    *events, done = await gateway.events("/v1/completions", prompt="A", **extras)
    assert done == "[DONE]"
    for event in events:
        CompletionChunk.model_validate(json.loads(event), strict=True)
    if "logprobs" in extras:
        extras = extras | {"logprobs": True, "top_logprobs": 2}
    messages = [{"role": "user", "content": "A"}]
    *events, done = await gateway.events("/v1/chat/completions", messages=messages, **extras)
    assert done == "[DONE]"
    for event in events:
        ChatCompletionChunk.model_validate(json.loads(event), strict=True)


async def test_null_stands_for_the_default_of_what_is_not_required(document):
    body = document["components"]["schemas"]["CompletionBody"]
    null = {"type": "null"}
    for name, field in body["properties"].items():
        if name in body["required"]:
            assert null not in field["anyOf"] if "anyOf" in field else field["type"] != "null", name
        elif "enum" in field:
            assert None in field["enum"], name
        elif "anyOf" in field:
            assert field["anyOf"].count(null) == 1, name
    assert body["properties"]["temperature"]["default"] == 1
    assert "additionalProperties" not in body, "what nobody knows is ignored"


async def test_what_is_not_supported_is_named_with_what_changes_nothing(document):
    fields = document["components"]["schemas"]["ChatBody"]["properties"]
    assert fields["logits_processors"]["enum"] == [[], None]
    assert "metadata" in fields


async def test_images_are_described_where_they_may_be(document):
    named = {
        "Message": "image_url",
        "ResponsesBody": "#/components/schemas/InputMessage",
        "InputImage": "data:",
        "ImagePart": "base64",
        "OllamaMessage": "images",
        "OllamaGenerateBody": "images",
    }
    for name, said in named.items():
        assert said in json.dumps(document["components"]["schemas"][name]), name
    assert "image_url" not in json.dumps(document["components"]["schemas"]["Prediction"])


async def test_a_schema_has_the_name_of_its_class_alone(document):
    assert not [name for name in document["components"]["schemas"] if "__" in name]
