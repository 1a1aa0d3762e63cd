"""Host memory over real processes: what is pushed out of a small pool comes back, and no answer changes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support.deployment import Deployment, running

STORIES = [f"Story {number}. " + f"The {number}th fox met a hen by the river. " * 12 for number in range(6)]


@pytest.fixture
def small(redis_server: RedisServer, tmp_path: Path) -> Iterator[Deployment]:
    """Room for 768 tokens of the shipped model, which two of the stories take, and for 4096 on the host."""
    yield from running(
        redis_server,
        tmp_path,
        QUIRE_KV_MEMORY="6MiB",
        QUIRE_HOST_MEMORY="32MiB",
        QUIRE_MAX_MODEL_LEN="512",
        QUIRE_DTYPE="float32",
    )


async def test_what_is_pushed_out_comes_back(small: Deployment) -> None:
    async with httpx.AsyncClient(base_url=small.url, timeout=60) as http:

        async def ask(story: str, **fields: Any) -> tuple[str, int, int]:
            """Text, tokens of the prompt, and how many of them were cached."""
            body = {"model": "quire-tiny", "prompt": story, "max_tokens": 60, "seed": 1, "ignore_eos": True}
            answer = (await http.post("/v1/completions", json=body | fields)).json()
            usage = answer["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            return answer["choices"][0]["text"], usage["prompt_tokens"], cached

        alone = [await ask(story, cache_salt=story[:8]) for story in STORIES]
        together = await asyncio.gather(*(ask(story) for story in STORIES))
        again = [await ask(story) for story in STORIES]
    assert all(cached == 0 for _, _, cached in alone)
    assert [text for text, *_ in together] == [text for text, *_ in again] == [text for text, *_ in alone]
    assert [cached for *_, cached in again] == [(tokens - 1) // 16 * 16 for _, tokens, _ in again]
