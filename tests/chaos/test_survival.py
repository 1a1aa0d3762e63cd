"""kill -9 of any process behind the gateway, in the middle of streamed answers: nothing is lost.

Questions are asked in peace, once, and while processes die; the bytes are compared.
"""

import asyncio
import json
import random
import time
from typing import Any

import numpy as np
import openai
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support.asking import Answer, ask
from tests.support.deployment import Deployment

BEHIND_THE_GATEWAY = ("gpu_worker", "scheduler_svc", "tokenizer_svc")


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    """What was answered in peace, by question."""
    return {}


async def in_peace(client: openai.AsyncOpenAI, answers: dict[str, Answer], **fields: Any) -> Answer:
    question = json.dumps(fields, sort_keys=True)
    if question not in answers:
        answers[question] = await ask(client, **fields)
    return answers[question]


async def ask_while_dying(
    client: openai.AsyncOpenAI, deployment: Deployment, victim: str, **fields: Any
) -> Answer:
    event = asyncio.Event()
    asking = asyncio.create_task(ask(client, lambda tokens: event.set() if tokens >= 20 else None, **fields))
    await event.wait()
    deployment.kill(victim)
    assert not asking.done(), "the answer was over before the kill"
    deployment.spawn(victim)  # as the launcher does
    return await asking


@pytest.mark.parametrize("victim", BEHIND_THE_GATEWAY)
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"seed": 7},  # and what the model itself says of a draw
        {"temperature": 0.8, "seed": 5, "n": 3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    ],
    ids=["greedy", "sampled", "three-samples-with-penalties"],
)
async def test_a_stream_goes_on_after_a_kill(
    deployment: Deployment,
    client: openai.AsyncOpenAI,
    answers: dict[str, Answer],
    victim: str,
    fields: dict[str, Any],
) -> None:
    expected = await in_peace(client, answers, **fields)
    assert all(len(tokens) == 200 for _, tokens in expected.values())
    assert await ask_while_dying(client, deployment, victim, **fields) == expected


@pytest.mark.parametrize("victim", BEHIND_THE_GATEWAY)
async def test_a_beam_search_ends_as_if_nothing_had_died(
    deployment: Deployment, client: openai.AsyncOpenAI, victim: str
) -> None:
    async def search() -> list[str]:
        answer = await client.completions.create(
            model=deployment.model_name,
            prompt="Once upon a time",
            n=4,
            max_tokens=160,
            extra_body={"use_beam_search": True, "ignore_eos": True},
        )
        return [choice.text for choice in answer.choices]

    expected = await search()
    assert len(set(expected)) == 4
    searching = asyncio.create_task(search())
    await asyncio.sleep(0.2)
    deployment.kill(victim)
    assert not searching.done(), "the answer was over before the kill"
    deployment.spawn(victim)
    assert await searching == expected


@pytest.mark.parametrize("victim", BEHIND_THE_GATEWAY)
async def test_embeddings_are_as_if_nothing_had_died(
    deployment: Deployment, client: openai.AsyncOpenAI, victim: str
) -> None:
    texts = [" ".join(["The owl saw snow."] * (1 + number % 40)) + str(number) for number in range(60)]

    async def embed() -> list[list[float]]:
        # Of means nothing comes out of the cache: it takes as long the second time.
        answer = await client.embeddings.create(
            model=deployment.model_name, input=texts, extra_body={"pooling": "mean"}
        )
        return [one.embedding for one in answer.data]

    began = time.monotonic()
    expected = await embed()
    took = time.monotonic() - began
    embedding = asyncio.create_task(embed())
    await asyncio.sleep(took / 3)
    deployment.kill(victim)
    assert not embedding.done(), "the answer was over before the kill"
    deployment.spawn(victim)
    np.testing.assert_allclose(await embedding, expected, atol=1e-5)


async def test_many_streams_survive_kill_after_kill(
    deployment: Deployment, client: openai.AsyncOpenAI
) -> None:
    """Twelve streams, and every few tenths of a second another process dies."""
    chance = random.Random(3)
    questions = [{"temperature": 1.0, "seed": seed} for seed in range(12)]
    expected = await asyncio.gather(*(ask(client, **question) for question in questions))

    asking = asyncio.gather(*(ask(client, **question) for question in questions))
    for victim in ("tokenizer_svc", "gpu_worker", "scheduler_svc"):
        await asyncio.sleep(chance.uniform(0.2, 0.5))
        deployment.kill(victim)
        deployment.spawn(victim)
    assert await asking == expected


async def test_redis_comes_back_with_all_that_was_accepted(
    redis_server: RedisServer,
    deployment: Deployment,
    client: openai.AsyncOpenAI,
    answers: dict[str, Answer],
) -> None:
    expected = await in_peace(client, answers, temperature=0)
    event = asyncio.Event()
    asking = asyncio.create_task(
        ask(client, lambda tokens: event.set() if tokens >= 20 else None, temperature=0)
    )
    await event.wait()
    redis_server.kill()
    assert not asking.done()
    redis_server.start()
    assert await asking == expected
