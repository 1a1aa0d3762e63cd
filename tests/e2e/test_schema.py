"""The OpenAPI document is true: whatever is sent, the answer is one that the document has, and no 5xx.

Requests are drawn from the document, some as it asks and some not. `SCHEMA_CASES` says how many (default: two
hundred), `TEST_EXAMPLES=others` draws others than last time. `SCHEMA_OUT` names a file for what came of them.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ops.bench.record import write
from tests.support.deployment import Deployment

CASES = int(os.environ.get("SCHEMA_CASES", "200"))
TOKENS = 4
"""Of an answer at most, so that many can be asked for."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
POSTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize")
POSTS += ("/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/responses/input_tokens")
POSTS += ("/v1/rerank", "/rerank", "/v1/score", "/v1/classify", "/pooling", "/embed")
POSTS += ("/v1/fim/completions", "/infill", "/completion")
POSTS += ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show")
GETS = (
    *("/v1/models", "/v1/models/{name}", "/health", "/health/live", "/health/ready"),
    *("/ping", "/load", "/version", "/metrics", "/api/version", "/api/tags", "/api/ps"),
    *("/v2", "/v2/health/live", "/v2/health/ready", "/info"),
    *("/props", "/api/v0/models", "/api/v0/models/{name}"),
)
STORED = (
    "GET /v1/responses/{response_id}",
    "GET /v1/responses/{response_id}/input_items",
    "POST /v1/responses/{response_id}/cancel",
    "DELETE /v1/responses/{response_id}",
)
FILES = (
    *("GET /v1/files", "GET /v1/files/{file_id}", "GET /v1/files/{file_id}/content"),
    *("POST /v1/files", "DELETE /v1/files/{file_id}"),
)
BATCHES = (
    *("GET /v1/batches", "GET /v1/batches/{batch_id}"),
    *("POST /v1/batches", "POST /v1/batches/{batch_id}/cancel"),
)
ONE_CONVERSATION = "/v1/conversations/{conversation_id}"
CONVERSATIONS = (
    *("POST /v1/conversations", f"POST {ONE_CONVERSATION}", f"POST {ONE_CONVERSATION}/items"),
    *(f"{method} {ONE_CONVERSATION}" for method in ("GET", "DELETE")),
    *(f"{method} {ONE_CONVERSATION}/items/{{item_id}}" for method in ("GET", "DELETE")),
    f"GET {ONE_CONVERSATION}/items",
)
KSERVE = ("GET /v2/models/{name}", "GET /v2/models/{name}/ready", "POST /v2/models/{name}/infer")
OTHERS = (
    "GET /v1/models/{name}",
    "GET /api/v0/models/{name}",
    *KSERVE,
    *STORED,
    *FILES,
    *BATCHES,
    *CONVERSATIONS,
)
DRAWN = [
    *((f"POST {path}", mode) for path in POSTS for mode in GenerationMode),
    *((label, GenerationMode.POSITIVE) for label in OTHERS),
    ("POST /v1/batches", GenerationMode.NEGATIVE),
    ("POST /v1/conversations", GenerationMode.NEGATIVE),
]
REFUSED = [400, 404, 413]
"""Statuses of answers to requests that are not as documented. Such a request may also be too large."""
REQUIRED = {
    "model",
    "messages",
    "prompt",
    "input",
    "tokens",
    "query",
    "documents",
    "inputs",
    "texts",
    "text_1",
    "text_2",
}


WAVE = {"type": "function", "function": {"name": "wave", "parameters": {"type": "object", "properties": {}}}}
"""A function without arguments: any model can call it within a few tokens."""


@pytest.fixture(scope="module")
def operations(deployment: Deployment) -> dict[str, APIOperation]:
    """What the document has, such as "GET /v1/models"."""
    document = requests.get(f"{deployment.url}/openapi.json").json()
    config = SchemathesisConfig.from_dict(
        {"checks": {"negative_data_rejection": {"expected-statuses": REFUSED}}}
    )
    schema = schemathesis.openapi.from_dict(document, config=config)
    found = [each.ok() for each in schema.get_all_operations()]
    return {operation.label: operation for operation in found}


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Iterator[Counter[tuple[str, str]]]:
    """Number of answers by operation and status. They become a result file if no test has failed."""
    counts: Counter[tuple[str, str]] = Counter()
    yield counts
    if (out := os.environ.get("SCHEMA_OUT")) and not request.session.testsfailed:
        statuses: dict[str, dict[str, int]] = {}
        for (label, status), count in sorted(counts.items()):
            statuses.setdefault(label, {})[status] = count
        seed = request.config.getoption("hypothesis_seed")
        write(Path(out), "schema", int(seed or 0), {"requests": counts.total(), "statuses": statuses})


def test_all_operations_are_looked_at(operations: dict[str, APIOperation]) -> None:
    assert operations.keys() == {
        *(f"POST {path}" for path in POSTS),
        *(f"GET {path}" for path in GETS),
        *KSERVE,
        *STORED,
        *FILES,
        *BATCHES,
        *CONVERSATIONS,
    }


@st.composite
def cases(draw: st.DrawFn, operation: APIOperation, mode: GenerationMode) -> Case:
    """A case, mostly for a model that exists. If it is as documented, it takes neither long nor for ever."""
    case = draw(operation.as_strategy(generation_mode=mode))
    body = case.body
    if not isinstance(body, dict):
        return case
    if mode is GenerationMode.POSITIVE:
        # Of many fields two are always at odds with each other.
        others = sorted(body.keys() - REQUIRED)
        kept = draw(st.sets(st.sampled_from(others), max_size=2)) if others else set()
        for name in set(others) - kept:
            del body[name]
        for message in body.get("messages") or ():
            message["role"] = draw(st.sampled_from(("system", "user", "assistant")))
    if isinstance(body.get("model"), str) and len(body["model"]) % 4:
        body["model"] = "quire-tiny"
    timeout = body.get("timeout")
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout < 60:
        body["timeout"] = 60
    limits: tuple[str, ...] = ("max_tokens", "max_completion_tokens")
    if operation.path in ("/api/chat", "/api/generate"):
        if not isinstance(options := body.setdefault("options", {}), dict):
            return case
        body, limits = options, ("num_predict",)
    if operation.path == "/v1/responses":
        limits = ("max_output_tokens",)
    for name in limits:
        # A number that is too large must stay wrong.
        if type(body.get(name)) is int and 0 < body[name] < 2**31:
            body[name] = min(body[name], TOKENS)
    generating = operation.path in ("/v1/responses", "/v1/chat/completions")
    if (generating or "input" not in body) and all(body.get(name) is None for name in limits):
        body[limits[0]] = TOKENS
    return case


@pytest.mark.timeout(60 + CASES)
@pytest.mark.parametrize(("label", "mode"), DRAWN, ids=lambda value: getattr(value, "value", value))
def test_answers_are_documented(
    deployment: Deployment,
    operations: dict[str, APIOperation],
    answers: Counter[tuple[str, str]],
    label: str,
    mode: GenerationMode,
) -> None:
    with requests.Session() as session:
        session.trust_env = False

        @settings(max_examples=-(-CASES // len(DRAWN)), suppress_health_check=list(HealthCheck))
        @given(case=cases(operations[label], mode))
        def explore(case: Case) -> None:
            response = case.call(base_url=deployment.url, session=session, timeout=60)
            answers[label, str(response.status_code)] += 1
            left_out = [negative_data_rejection] if is_documented(case) else []
            case.validate_response(response, checks=CHECKS, excluded_checks=left_out)

        explore()


def is_documented(case: Case) -> bool:
    """Whether a body that was made wrong is as documented all the same, as another of several shapes."""
    wrong = {place for place, part in case.meta.components.items() if part.mode.is_negative}
    if wrong != {ParameterLocation.BODY}:
        return False
    method, path = case.operation.method.lower(), case.operation.path.replace("/", "~1")
    pointer = f"#/paths/{path}/{method}/requestBody/content/application~1json/schema"
    whole = {**case.operation.schema.raw_schema, "$ref": pointer}
    try:
        return jsonschema_rs.Draft202012Validator(whole).is_valid(case.body)
    except (TypeError, ValueError):  # a body that is no JSON
        return False


def test_a_body_of_another_shape_is_not_wrong(operations: dict[str, APIOperation]) -> None:
    wrong = SimpleNamespace(mode=GenerationMode.NEGATIVE)
    meta = SimpleNamespace(components={ParameterLocation.BODY: wrong})
    operation = operations["POST /v1/conversations"]
    for kind, text, right in (("input_text", "", True), ("output_text", "", True), ("input_text", 5, False)):
        body = {"items": [{"role": "assistant", "content": [{"type": kind, "text": text}]}]}
        assert is_documented(SimpleNamespace(meta=meta, operation=operation, body=body)) is right


@pytest.mark.parametrize("path", GETS)
def test_what_has_no_body_is_as_documented(
    deployment: Deployment, operations: dict[str, APIOperation], path: str
) -> None:
    case = operations[f"GET {path}"].Case(path_parameters={"name": "quire-tiny"} if "{name}" in path else {})
    response = case.call(base_url=deployment.url)
    assert response.status_code == 200
    case.validate_response(response, checks=CHECKS[:-1])


def test_stored_responses_are_as_documented(
    deployment: Deployment, operations: dict[str, APIOperation]
) -> None:
    ask = {"model": "quire-tiny", "input": "A fox", "max_output_tokens": TOKENS, "background": True}
    made = requests.post(f"{deployment.url}/v1/responses", json=ask).json()
    for label in STORED:
        case = operations[label].Case(path_parameters={"response_id": made["id"]})
        response = case.call(base_url=deployment.url)
        assert response.status_code == 200
        case.validate_response(response, checks=CHECKS[:-1])


def test_files_and_batches_are_as_documented(
    deployment: Deployment, operations: dict[str, APIOperation]
) -> None:
    ask = {"model": "quire-tiny", "prompt": "A fox", "max_tokens": TOKENS}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": ask}
    given = requests.post(
        f"{deployment.url}/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", json.dumps(line))}
    ).json()
    body = {"input_file_id": given["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = requests.post(f"{deployment.url}/v1/batches", json=body).json()
    for label in (*BATCHES[:2], BATCHES[3], *FILES[:3], FILES[4]):
        case = operations[label].Case(path_parameters={"file_id": given["id"], "batch_id": batch["id"]})
        response = case.call(base_url=deployment.url)
        assert response.status_code == 200, label
        case.validate_response(response, checks=CHECKS[:-1])


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "A fox", "logprobs": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "A fox"}]}),
        (
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "A fox"}],
                "tools": [WAVE],
                "tool_choice": "required",
                "max_tokens": 500,
                "temperature": 0,
            },
        ),
        ("/v1/messages", {"messages": [{"role": "user", "content": "A fox"}]}),
        ("/v1/responses", {"input": "A fox", "max_output_tokens": TOKENS}),
    ],
)
def test_streams_are_documented_from_their_first_event_to_their_last(
    deployment: Deployment, operations: dict[str, APIOperation], path: str, asked: dict[str, object]
) -> None:
    body = {"model": "quire-tiny", "max_tokens": TOKENS, "stream": True} | asked
    case = operations[f"POST {path}"].Case(body=body, media_type="application/json")
    response = case.call(base_url=deployment.url)
    assert response.headers["content-type"][0].startswith("text/event-stream")
    case.validate_response(response, checks=CHECKS)
