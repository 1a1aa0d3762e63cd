"""A mixed load, as a public server gets it: answers of all kinds, mistakes, clients that leave."""

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx

PROMPT = "The owl and the fox went for a walk in the snow. "
EXPECTED = {200, 400, 404, 413, 429, 504}
"""Statuses of the mixture's requests. Anything else is a fault of the server."""

Visit = Callable[["Visitor"], Awaitable[None]]


class Visitor:
    """One user, who does this and that. `outcomes`: of all users, by what was done."""

    def __init__(self, client: httpx.AsyncClient, model: str, seed: int, outcomes: Counter[str]) -> None:
        self.client = client
        self.model = model
        self.chance = random.Random(seed)
        self.outcomes = outcomes
        self.problems: list[str] = []

    async def stay(self, until: Callable[[], bool]) -> None:
        """Do one thing after the other until `until()`."""
        visits, weights = zip(*VISITS.items(), strict=True)
        while not until():
            visit = self.chance.choices(visits, weights)[0]
            try:
                await visit(self)
            except httpx.HTTPError as error:
                self.problems.append(f"{visit.__name__}: {error!r}")
            self.outcomes[visit.__name__.strip("_").replace("_", " ")] += 1

    async def post(self, path: str, **body: Any) -> httpx.Response:
        """A request and its answer. A status that nobody expects is a problem."""
        answer = await self.client.post(path, json={"model": self.model, **body})
        self.outcomes[str(answer.status_code)] += 1
        if answer.status_code not in EXPECTED:
            self.problems.append(f"{answer.status_code} for {body}: {answer.text[:500]}")
        return answer

    def prompt(self, most: int = 20) -> str:
        """A text of at most `most` sentences, and a number that makes it differ from other prompts."""
        return PROMPT * self.chance.randint(1, most) + str(self.chance.randrange(10**6))


async def _short(visitor: Visitor) -> None:
    await visitor.post("/v1/completions", prompt=visitor.prompt(2), max_tokens=8)


async def _long(visitor: Visitor) -> None:
    await visitor.post("/v1/completions", prompt=visitor.prompt(60), max_tokens=200, ignore_eos=True)


async def _conversation(visitor: Visitor) -> None:
    messages = [{"role": "user", "content": visitor.prompt()}]
    for _ in range(3):
        answer = await visitor.post("/v1/chat/completions", messages=messages, max_tokens=24, seed=1)
        if answer.status_code != 200:
            return
        messages += [answer.json()["choices"][0]["message"] | {"refusal": None}]
        messages += [{"role": "user", "content": "Go on."}]


async def _samples_with_everything(visitor: Visitor) -> None:
    options = {"n": 3, "logprobs": 3, "presence_penalty": 0.5, "stop": ["\n\n"], "return_token_ids": True}
    await visitor.post("/v1/completions", prompt=visitor.prompt(), max_tokens=32, **options)


async def _beams(visitor: Visitor) -> None:
    await visitor.post(
        "/v1/completions", prompt=visitor.prompt(), max_tokens=16, n=2, use_beam_search=True, beam_width=4
    )


async def _embeddings(visitor: Visitor) -> None:
    await visitor.post("/v1/embeddings", input=[visitor.prompt() for _ in range(4)])


async def _mistakes(visitor: Visitor) -> None:
    await visitor.post("/v1/completions", prompt="A", max_tokens=-1)
    await visitor.post("/v1/completions", prompt="A " * 5000)
    await visitor.post("/v1/chat/completions", messages="no list")
    await visitor.client.post("/v1/completions", json={"model": "unknown", "prompt": "A"})


async def _too_late(visitor: Visitor) -> None:
    await visitor.post(
        "/v1/completions", prompt=visitor.prompt(), max_tokens=500, ignore_eos=True, timeout=0.05
    )


async def _left_in_the_middle(visitor: Visitor) -> None:
    body = {"model": visitor.model, "prompt": visitor.prompt(), "max_tokens": 1000, "stream": True, "n": 2}
    events = visitor.chance.randint(0, 20)
    async with visitor.client.stream("POST", "/v1/completions", json=body) as answer:
        async for _ in answer.aiter_lines():
            events -= 1
            if events < 0:
                return


async def _left_before_the_answer(visitor: Visitor) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(visitor.chance.uniform(0.001, 0.03)):
            await visitor.client.post(
                "/v1/completions",
                json={"model": visitor.model, "prompt": visitor.prompt(), "max_tokens": 500},
            )


async def _left_in_the_request(visitor: Visitor) -> None:
    url = visitor.client.base_url
    _, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n")
    if visitor.chance.random() < 0.5:
        writer.write(b'Content-Type: application/json\r\n\r\n{"model":')
    await writer.drain()
    if visitor.chance.random() < 0.5:
        # With this the connection is reset instead of closed.
        option = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(1, 13, option)
    writer.close()


VISITS: dict[Visit, int] = {
    _short: 8,
    _long: 2,
    _conversation: 3,
    _samples_with_everything: 2,
    _beams: 1,
    _embeddings: 2,
    _mistakes: 2,
    _too_late: 1,
    _left_in_the_middle: 3,
    _left_before_the_answer: 3,
    _left_in_the_request: 2,
}
"""How often each is done, relative to the others."""
