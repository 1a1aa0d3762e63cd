"""Speculation over real processes: the same answers as without, whoever dies on the way."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ops.launcher.redis_server import RedisServer
from ops.model_directory.settings import SHIPPED_DRAFT, SHIPPED_PREDICTOR
from tests.support.asking import attempts
from tests.support.deployment import Deployment, running

CHAT = "<|begin|><|user|>{}<|end|><|assistant|>"
REPEATED = "The fox sees the hen, and the hen sees the fox. "
ASKED: list[dict[str, Any]] = [
    {"prompt": CHAT.format("Tell me a story about a fox."), "temperature": 0},
    {"prompt": CHAT.format("Tell me a story about a bear."), "temperature": 0.8, "seed": 5, "n": 2},
    {"prompt": REPEATED * 4, "temperature": 0},
    {"prompt": REPEATED * 3, "temperature": 0.5, "seed": 8, "logprobs": 1, "frequency_penalty": 0.1},
    {"prompt": "Once upon a time", "temperature": 0, "stop": ["hen", "wood", " said"]},
]
LENGTH = 240


async def answers(deployment: Deployment) -> list[tuple[Any, ...]]:
    """What each choice of each request came to, all asked at once."""
    async with httpx.AsyncClient(base_url=deployment.url, timeout=90) as http:
        bodies = [{"model": "quire-tiny", "max_tokens": LENGTH, "ignore_eos": True, **each} for each in ASKED]
        responses = await asyncio.gather(*(http.post("/v1/completions", json=body) for body in bodies))
    found = []
    for response in responses:
        assert response.status_code == 200, response.text
        body = response.json()
        usage = body["usage"]["completion_tokens"]
        for choice in body["choices"]:
            told = choice["logprobs"] and choice["logprobs"]["tokens"]
            found.append((choice["text"], choice["finish_reason"], told, usage))
    return found


async def chat(deployment: Deployment, prediction: str) -> tuple[str, dict[str, int]]:
    """The answer, and what it took, with the details of its tokens."""
    body: dict[str, Any] = {"model": "quire-tiny", "temperature": 0.8, "seed": 3, "max_tokens": LENGTH}
    body["messages"] = [{"role": "user", "content": "Tell me a story about a fox and a hen."}]
    if prediction:
        body["prediction"] = {"type": "content", "content": prediction}
    async with httpx.AsyncClient(base_url=deployment.url, timeout=90) as http:
        answer = (await http.post("/v1/chat/completions", json=body)).json()
    usage = answer["usage"]
    return answer["choices"][0]["message"]["content"], usage | usage.get("completion_tokens_details", {})


@pytest.fixture(params=["ngram", "draft", "mtp"])
def speculating(
    redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Deployment]:
    draft = SHIPPED_PREDICTOR if request.param == "mtp" else SHIPPED_DRAFT
    settings = {"QUIRE_SPECULATION": request.param, "QUIRE_DRAFT_MODEL": str(draft)}
    yield from running(redis_server, tmp_path, **settings)


@pytest.fixture(scope="module")
def expected(deployment: Deployment) -> list[tuple[Any, ...]]:
    return asyncio.run(answers(deployment))


async def test_the_same_answers_with_drafts(expected: list[tuple[Any, ...]], speculating: Deployment) -> None:
    assert await answers(speculating) == expected
    story, _ = await chat(speculating, "")
    words = story.split(" ")
    edited = " ".join([*words[:10], "purple", *words[11:40], *words[45:]])
    found, usage = await chat(speculating, edited)
    assert found == story
    assert usage["accepted_prediction_tokens"] > usage["completion_tokens"] / 2
    assert usage["rejected_prediction_tokens"] > 0
    # In the middle of answers the worker dies; another goes on.
    for attempt in attempts():
        asked = asyncio.create_task(answers(speculating))
        speculating.spawn("gpu_worker")
        await asyncio.sleep(0.1)
        speculating.kill("gpu_worker")
        attempt.hit = not asked.done()
        assert await asked == expected
