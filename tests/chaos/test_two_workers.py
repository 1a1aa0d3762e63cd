"""Several workers under load: one that joins takes work, one that dies is missed by nobody.

Clients see it: a worker runs as many streams at once as it has slots, and no answer depends on where it runs.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import openai
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support.asking import Answer, ask
from tests.support.deployment import Deployment

SLOTS = 2
USERS = 3 * SLOTS
QUESTIONS = [{"temperature": 0}, *({"temperature": 1.0, "seed": seed} for seed in range(USERS - 1))]
LONG_PROMPT = "The fox and the owl went for a walk in the snow, and talked about the weather. " * 6


@pytest.fixture(scope="module")
def deployment(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One worker with few slots; tests add others."""
    usual = {"QUIRE_MAX_SLOTS": str(SLOTS), "QUIRE_DTYPE": "auto"}
    deployment = Deployment(redis_server, tmp_path_factory.mktemp("two"), **usual)
    try:
        yield deployment.start()
        deployment.assert_clean()
    finally:
        deployment.stop()


@dataclass
class Load:
    """Users who ask without a pause, each its own question."""

    client: openai.AsyncOpenAI
    streaming: set[int] = field(default_factory=set)
    """Whose answer has begun and not ended."""
    answers: list[tuple[int, Answer]] = field(default_factory=list)
    enough: bool = False

    async def user(self, number: int) -> None:
        while not self.enough:
            answer = await ask(self.client, lambda _: self.streaming.add(number), **QUESTIONS[number])
            self.streaming.discard(number)
            self.answers.append((number, answer))

    async def until(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.005)

    async def most_at_once(self, answers: int) -> int:
        """The greatest number of answers that are under way at once."""
        most, due = 0, len(self.answers) + answers
        while len(self.answers) < due:
            most = max(most, len(self.streaming))
            await asyncio.sleep(0.005)
        return most


@asynccontextmanager
async def loaded(client: openai.AsyncOpenAI) -> AsyncIterator[Load]:
    """A load while the block runs; its answers are complete afterwards."""
    load = Load(client)
    users = asyncio.gather(*map(load.user, range(USERS)))
    try:
        yield load
    finally:
        load.enough = True
        await users


async def test_one_joins_and_one_dies_under_load(deployment: Deployment, client: openai.AsyncOpenAI) -> None:
    in_peace = [await ask(client, **question) for question in QUESTIONS]
    async with loaded(client) as load:
        alone = await load.most_at_once(USERS)
        deployment.spawn("gpu_worker")
        await load.until(lambda: len(load.streaming) >= 2 * SLOTS)
        together = await load.most_at_once(USERS)
        await load.until(lambda: len(load.streaming) >= 2 * SLOTS)
        deployment.kill("gpu_worker")  # the older one, in the middle of its answers; nobody replaces it
        survived = len(load.answers) + USERS
        await load.until(lambda: len(load.answers) >= survived)
    # An answer's end may be seen a moment after the next one's beginning.
    assert alone <= SLOTS + 1
    assert together >= 2 * SLOTS
    assert {number for number, _ in load.answers} == set(range(USERS))
    for number, answer in load.answers:
        assert answer == in_peace[number], QUESTIONS[number]


async def test_a_prompt_goes_where_its_beginning_is_cached(
    deployment: Deployment, client: openai.AsyncOpenAI
) -> None:
    async def cached(ending: str) -> int:
        answer = await client.completions.create(
            model="quire-tiny", prompt=LONG_PROMPT + ending, max_tokens=1, temperature=0
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    deployment.spawn("gpu_worker")
    async with loaded(client) as load:
        await load.until(lambda: len(load.streaming) >= 2 * SLOTS)
    # While the first worker is busy, the second one gets the prompt; among idle ones the first comes first.
    begun = asyncio.Event()
    running = asyncio.create_task(ask(client, lambda _: begun.set(), tokens=2000, temperature=0))
    await begun.wait()
    assert await cached("The fox said") == 0
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])
    assert await cached("The owl said") > 100
