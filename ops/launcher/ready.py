"""Whether the deployment answers, asked as a user would."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx

from ops.runtime.api_keys import authorization
from ops.runtime.errors import LaunchError

_RETRY_SECONDS = 0.1


async def _silently(missing: str) -> None:
    pass


async def wait_ready(
    url: str, models: Sequence[str], waiting: Callable[[str], Awaitable[None]] = _silently
) -> None:
    """Return once the gateway offers all models. Until then `waiting` is awaited again and again.

    `waiting`: is given what is missing, in words; empty while nobody knows.

    Who waits can always be cancelled: clients of HTTP and Redis may lose the cancellation of the task that
    they run in.
    """
    asking = asyncio.create_task(_ask_until_ready(url, models, waiting), name="asks whether it is ready")
    try:
        await asyncio.shield(asking)
    finally:
        asking.cancel()


async def _ask_until_ready(
    url: str, models: Sequence[str], waiting: Callable[[str], Awaitable[None]]
) -> None:
    async with _client() as client:
        while True:
            state = await _state(client, url)
            if {*models} <= {*state.get("models", ())}:
                return
            await waiting(", ".join(state.get("missing", ())))
            await asyncio.sleep(_RETRY_SECONDS)


async def first_answer(url: str, model: str, key: str, endpoint: str, body: Mapping[str, Any]) -> float:
    """Ask for an answer, and return the seconds that it took. Raises `LaunchError` if it is an error.

    `key`: an API key; empty where none is needed. `endpoint`, `body`: what the model can be asked, see
    `first_request`.
    """
    headers = authorization(key)
    async with _client() as client:
        while True:
            start = time.perf_counter()
            answer = await client.post(f"{url}/v1/{endpoint}", json={"model": model, **body}, headers=headers)
            if answer.status_code == httpx.codes.OK:
                return time.perf_counter() - start
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                raise LaunchError(f"a first answer was asked for and refused: {answer.text}")
            await asyncio.sleep(_RETRY_SECONDS)


async def _state(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """The gateway's answer to /health/ready; empty while it does not listen."""
    try:
        state = (await client.get(f"{url}/health/ready")).json()
        return state if isinstance(state, dict) else {}
    except (httpx.TransportError, ValueError):
        return {}


def _client() -> httpx.AsyncClient:
    # The first token of a large model may take long; the environment's proxies are not for loopback.
    return httpx.AsyncClient(timeout=60, trust_env=False)
