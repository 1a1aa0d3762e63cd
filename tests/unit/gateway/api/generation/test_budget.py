"""What one request may cost. Whoever asks for more gets 400 before anything is asked of the tokenizer."""

from typing import Any

import grpc
import httpx
import pytest

from ops.runtime.limits import Limits
from tests.unit.gateway.conftest import app_of

COMPLETION = {"model": "m", "prompt": "A"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "A"}]}
BEAMS = {"use_beam_search": True}
ROLLING = {"rolling_context": True}


async def ask(backend: Any, body: dict[str, Any], limits: str = "") -> httpx.Response:
    transport = httpx.ASGITransport(app_of(backend, limits=Limits.parse(limits)))
    path = "chat/completions" if "messages" in body else "embeddings" if "input" in body else "completions"
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.post(f"/v1/{path}", json=body)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (COMPLETION | BEAMS | {"prompt": ["A"] * 128, "beam_width": 128}, "beam_width", "at most 128"),
    (COMPLETION | BEAMS | {"prompt": ["A"] * 2, "n": 65}, "n", "Prompts times 'n' must be at most 128"),
    (COMPLETION | {"prompt": ["A"] * 2, "best_of": 65}, "best_of", "Prompts times 'best_of'"),
]


@pytest.mark.parametrize(("body", "param", "said"), REFUSED)
async def test_too_much_is_refused(backend: Any, tokenizer: Any, body: Any, param: str, said: str) -> None:
    answer = await ask(backend, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, "invalid_value")
    assert said in error["message"]
    assert not tokenizer.requests


@pytest.mark.parametrize(
    "body",
    [
        COMPLETION | {"n": 64, "max_tokens": 4000, "stream": True},
        COMPLETION | {"prompt": ["A"] * 128},
        COMPLETION | BEAMS | {"beam_width": 128, "n": 1},
        COMPLETION | ROLLING | {"stream": True},
        CHAT | {"n": 128},
        CHAT | {"max_tokens": 2**20},
    ],
)
async def test_what_is_usual_is_let_through(backend: Any, tokenizer: Any, body: Any) -> None:
    assert (await ask(backend, body)).status_code == 200
    assert tokenizer.requests


@pytest.mark.parametrize(
    ("fields", "limits", "most"),
    [
        ({}, "", 2**20),
        ({"n": 4}, "", 2**18),
        ({"n": 4}, "answer_tokens=1000", 250),
        ({"rolling_context": True, "stream": True}, "answer_tokens=1000", 1000),
    ],
)
async def test_an_answer_of_no_given_length_has_one_all_the_same(
    backend: Any, tokenizer: Any, fields: dict[str, Any], limits: str, most: int
) -> None:
    assert (await ask(backend, CHAT | fields, limits)).status_code == 200
    assert tokenizer.requests[0].most_tokens == most
    assert not tokenizer.requests[0].HasField("max_tokens")


@pytest.mark.parametrize(
    ("body", "limits", "most"),
    [
        (COMPLETION | ROLLING | {"max_tokens": 2**31 - 1, "n": 128}, "", 8192),
        (CHAT | ROLLING | {"max_completion_tokens": 2**31 - 1}, "", 2**20),
        (CHAT | {"max_tokens": 10**9}, "", 2**20),
        (COMPLETION | {"max_tokens": 2**20 // 2 + 1, "n": 2}, "", 2**19),
        (CHAT | {"n": 2, "max_tokens": 51}, "answer_tokens=100", 50),
    ],
)
async def test_more_tokens_than_are_allowed_are_cut(
    backend: Any, tokenizer: Any, body: dict[str, Any], limits: str, most: int
) -> None:
    """By the tokenizer, as those that the context has no room for."""
    assert (await ask(backend, body, limits)).status_code == 200
    assert tokenizer.requests[0].most_tokens == most
    assert tokenizer.requests[0].max_tokens > most


@pytest.mark.parametrize(
    "body", [COMPLETION | {"max_tokens": -1}, CHAT | {"max_tokens": -1}, CHAT | {"max_completion_tokens": -1}]
)
async def test_a_length_of_minus_one_is_any(backend: Any, tokenizer: Any, body: dict[str, Any]) -> None:
    """Not the API's default, nor the model's."""
    assert (await ask(backend, body)).status_code == 200
    (request,) = tokenizer.requests
    assert not request.HasField("max_tokens")
    assert "max_tokens" not in request.left_out


async def test_a_length_that_is_only_the_api_s_default_is_never_refused(backend: Any, tokenizer: Any) -> None:
    assert (await ask(backend, COMPLETION, "answer_tokens=3")).status_code == 200
    assert tokenizer.requests[0].most_tokens == 3


LIMITS = "sequences=4 answer_tokens=100 seconds=30 priority=2:5"


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        (COMPLETION | {"n": 5}, "n", "'n' must be at most 4"),
        (COMPLETION | {"prompt": ["A"] * 5}, "n", "must be at most 4"),
        (COMPLETION | {"timeout": 31}, "timeout", "at most 30"),
        (CHAT | {"priority": 1}, "priority", "in [2, 5]"),
        (COMPLETION | {"priority": 6}, "priority", "in [2, 5]"),
        ({"model": "m", "input": "A", "priority": 0}, "priority", "in [2, 5]"),
        ({"model": "m", "input": "A", "timeout": 40}, "timeout", "at most 30"),
    ],
)
async def test_a_deployment_s_own_limits(
    backend: Any, tokenizer: Any, body: Any, param: str, said: str
) -> None:
    answer = await ask(backend, body, LIMITS)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert said in error["message"]
    assert not tokenizer.requests
    assert not tokenizer.texts


async def test_what_is_left_out_is_within_the_limits(backend: Any, tokenizer: Any) -> None:
    for body in (COMPLETION, {"model": "m", "input": "A"}):
        assert (await ask(backend, body, "seconds=30 priority=2:5")).status_code == 200
    assert tokenizer.requests[0].priority == tokenizer.texts[0].priority == 2


async def test_time_is_limited_whether_or_not_the_client_names_one(backend: Any, tokenizer: Any) -> None:
    async def endless(request: Any, context: Any) -> Any:
        assert context.time_remaining() < 1
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "late")
        yield

    tokenizer.generate = endless
    assert (await ask(backend, CHAT, "seconds=0.5")).status_code == 504
