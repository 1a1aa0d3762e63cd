"""Answers that outlive the model's context, through all processes."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support.asking import attempts
from tests.support.deployment import Deployment, running

CONTEXT = 128


@pytest.fixture(scope="module")
def short(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment with a short context."""
    directory = tmp_path_factory.mktemp("short")
    yield from running(redis_server, directory, QUIRE_MAX_MODEL_LEN=str(CONTEXT))


class Listener:
    """A streamed answer and what has come of it."""

    def __init__(self, deployment: Deployment) -> None:
        self.url = f"{deployment.url}/v1"
        self.text = ""
        self.tokens: list[int] = []
        self.finish: str | None = None

    async def listen(self, enough: Callable[[], bool] = lambda: False, **fields: Any) -> None:
        """Until it ends, or until it is enough: then the connection is closed."""
        extra = {"ignore_eos": True, "return_token_ids": True, "rolling_context": True}
        async with openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0) as client:
            stream = await client.completions.create(
                model="quire-tiny", prompt="Once upon a time", seed=3, stream=True, extra_body=extra, **fields
            )
            async for chunk in stream:
                (choice,) = chunk.choices
                assert choice.model_extra is not None
                self.text += choice.text
                self.tokens += choice.model_extra.get("token_ids") or []
                self.finish = choice.finish_reason
                if enough():
                    break


@pytest.mark.parametrize("victim", ["gpu_worker", "scheduler_svc"])
async def test_a_kill_in_the_middle_changes_nothing(short: Deployment, victim: str) -> None:
    whole = Listener(short)
    await whole.listen(max_tokens=500)
    assert len(whole.tokens) == 500
    assert whole.finish == "length"
    for attempt in attempts():
        broken = Listener(short)
        asking = asyncio.create_task(broken.listen(max_tokens=500))
        while len(broken.tokens) < 2 * CONTEXT:
            await asyncio.sleep(0.005)
        short.kill(victim)
        attempt.hit = not asking.done()
        short.spawn(victim)
        await asking
        assert broken.tokens == whole.tokens
        assert broken.text == whole.text


async def test_without_a_limit_it_goes_on_until_the_connection_is_closed(short: Deployment) -> None:
    endless = Listener(short)
    await endless.listen(lambda: len(endless.tokens) >= 4 * CONTEXT)
    limited = Listener(short)
    await limited.listen(max_tokens=4 * CONTEXT)
    assert limited.tokens == endless.tokens[: 4 * CONTEXT]


async def test_without_rolling_the_context_is_the_limit(short: Deployment) -> None:
    question = {"model": "quire-tiny", "prompt": "Once upon a time", "max_tokens": 2 * CONTEXT}
    async with httpx.AsyncClient(base_url=short.url, timeout=60) as http:
        question["ignore_eos"] = True
        usage = (await http.post("/v1/completions", json=question)).json()["usage"]
        assert usage["total_tokens"] == CONTEXT
        rolling = question | {"rolling_context": True}
        answer = (await http.post("/v1/completions", json=rolling)).json()
        assert answer["usage"]["completion_tokens"] == 2 * CONTEXT
