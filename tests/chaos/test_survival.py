"""kill -9 of any process behind the gateway, in the middle of streamed answers: nothing is lost.

Questions are asked in peace, once, and while processes die; the bytes are compared.
"""

import asyncio
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support.asking import Answer, ask, attempts
from tests.support.deployment import ROOT, Deployment

BEHIND_THE_GATEWAY = ("gpu_worker", "scheduler_svc", "tokenizer_svc")


STREAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"seed": 7},  # and what the model itself says of a draw
    "three samples with penalties": {
        "temperature": 0.8,
        "seed": 5,
        "n": 3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
    },
    # It is not complete before the stream's last token.
    "a grammar": {"seed": 9, "extra": {"ignore_eos": False, "guided_regex": "([A-Z][a-z]{2,9}[.] ){400}"}},
}


async def begin_to_ask(client: openai.AsyncOpenAI, **fields: Any) -> "asyncio.Task[Answer]":
    """An answer that has come to its twentieth token."""
    begun = asyncio.Event()
    asking = asyncio.create_task(ask(client, lambda tokens: begun.set() if tokens >= 20 else None, **fields))
    await begun.wait()
    return asking


async def search(client: openai.AsyncOpenAI) -> list[str]:
    """The texts of a beam search."""
    answer = await client.completions.create(
        model="quire-tiny",
        prompt="Once upon a time",
        n=4,
        max_tokens=160,
        extra_body={"use_beam_search": True, "ignore_eos": True},
    )
    return [choice.text for choice in answer.choices]


async def embed(client: openai.AsyncOpenAI) -> list[list[float]]:
    texts = [" ".join(["The owl saw snow."] * (1 + number % 40)) + str(number) for number in range(60)]
    # Of means nothing comes out of the cache: it takes as long the second time.
    answer = await client.embeddings.create(model="quire-tiny", input=texts, extra_body={"pooling": "mean"})
    return [one.embedding for one in answer.data]


async def pool(client: openai.AsyncOpenAI) -> list[list[list[float]]]:
    """Vectors of all tokens of texts."""
    texts = [" ".join(["The owl saw snow."] * (1 + number)) for number in range(40)]
    path = f"{str(client.base_url).removesuffix('v1/')}pooling"
    ask = {"model": "quire-tiny", "input": texts, "task": "token_embed"}
    async with httpx.AsyncClient(timeout=120) as http:
        return [one["data"] for one in (await http.post(path, json=ask)).json()["data"]]


@dataclass(frozen=True)
class Peace:
    """What is answered while nothing dies."""

    streams: list[Answer]
    texts: list[str]
    embeddings: list[list[float]]
    vectors: list[list[list[float]]]
    embedding_seconds: float


@pytest.fixture(scope="module")
def peace(deployment: Deployment) -> Peace:
    async def found() -> Peace:
        async with openai.AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none") as client:
            streams = [await ask(client, **fields) for fields in STREAMS.values()]
            texts = await search(client)
            began = time.monotonic()
            embeddings = await embed(client)
            seconds = time.monotonic() - began
            return Peace(streams, texts, embeddings, await pool(client), seconds)

    return asyncio.run(found())


@pytest.mark.parametrize("victim", BEHIND_THE_GATEWAY)
async def test_everything_goes_on_after_a_kill(
    deployment: Deployment, client: openai.AsyncOpenAI, peace: Peace, victim: str
) -> None:
    """Streams of all kinds, a beam search and embeddings, in the middle of each."""
    assert all(len(tokens) == 200 for answer in peace.streams for _, tokens in answer.values())
    assert len(set(peace.texts)) == 4
    for attempt in attempts():
        searching = asyncio.create_task(search(client))
        streaming = await asyncio.gather(*(begin_to_ask(client, **fields) for fields in STREAMS.values()))
        embedding, pooling = asyncio.create_task(embed(client)), asyncio.create_task(pool(client))
        await asyncio.sleep(peace.embedding_seconds / 3)
        deployment.kill(victim)
        attempt.hit = not any(one.done() for one in (searching, *streaming, embedding))
        deployment.spawn(victim)  # as the launcher does
        assert await asyncio.gather(*streaming) == peace.streams
        assert await searching == peace.texts
        np.testing.assert_allclose(await embedding, peace.embeddings, atol=1e-5)
        for found, wanted in zip(await pooling, peace.vectors, strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-5)


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


@pytest.fixture
def before(tmp_path: Path) -> Path | None:
    """A checkout of the commit in TEST_BEFORE; None if there is none."""
    if not (commit := os.environ.get("TEST_BEFORE")):
        return None
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], check=True, input=archive.stdout)
    return tmp_path


@pytest.mark.timeout(300)
async def test_every_process_is_replaced_under_load(deployment: Deployment, before: Path | None) -> None:
    """Each by SIGTERM and a new one.

    With TEST_BEFORE=COMMIT by one of that version first, so that each process of either version serves beside
    the other version of all others.
    """
    questions: list[dict[str, Any]] = [{"temperature": 0}, *({"seed": seed} for seed in range(3))]
    answers: list[tuple[int, Answer]] = []
    enough = False

    async def user(number: int) -> None:
        while not enough:
            answers.append((number, await ask(client, **questions[number])))

    # A connection that ends before its request was answered at all is made again, as every client does.
    async with openai.AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=2) as client:
        in_peace = [await ask(client, **question) for question in questions]
        users = asyncio.gather(*(user(number) for number in range(len(questions))))
        for root in (before, ROOT) if before else (ROOT,):
            for service in (*BEHIND_THE_GATEWAY, "gateway"):
                await asyncio.to_thread(deployment.replace, service, root)
        enough = True
        await users
    for number, answer in answers:
        assert answer == in_peace[number]
    assert {number for number, _ in answers} == set(range(len(questions)))


async def test_kills_and_stops_at_random_refuse_nobody(
    deployment: Deployment, client: openai.AsyncOpenAI
) -> None:
    """Nobody waits until streams have gone on: a death may strike before one has gained a token."""
    chance = random.Random(5)
    questions = [{"temperature": 1.0, "seed": seed, "tokens": 60} for seed in range(8)]
    expected = await asyncio.gather(*(ask(client, **question) for question in questions))
    enough = asyncio.Event()
    answers = []

    async def user(number: int) -> None:
        while not enough.is_set():
            answers.append((number, await ask(client, **questions[number])))

    users = asyncio.gather(*map(user, range(len(questions))))
    for _ in range(7):
        await asyncio.sleep(chance.uniform(0, 0.5))
        victim = chance.choice(BEHIND_THE_GATEWAY)
        if chance.random() < 0.6:
            deployment.kill(victim)
            deployment.spawn(victim)
        else:
            stopped = next(one for one in deployment.processes[victim] if one.poll() is None)
            stopped.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1.5)  # longer than a lease
            stopped.send_signal(signal.SIGCONT)
    enough.set()
    await users
    assert len(answers) >= len(questions)
    for number, answer in answers:
        assert answer == expected[number]


async def test_redis_comes_back_with_all_that_was_accepted(
    redis_server: RedisServer, client: openai.AsyncOpenAI, peace: Peace
) -> None:
    for attempt in attempts():
        asking = await begin_to_ask(client, **STREAMS["greedy"])
        redis_server.kill()
        attempt.hit = not asking.done()
        redis_server.start()
        assert await asking == peace.streams[0]
