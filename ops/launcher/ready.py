"""Whether the deployment answers, asked as a user would."""

import asyncio
import time

import httpx

from ops.launcher.errors import LaunchError

_RETRY_SECONDS = 0.1


async def wait_ready(url: str) -> None:
    """Return once the gateway says that it can serve."""
    async with _client() as client:
        while True:
            try:
                if (await client.get(f"{url}/health/ready")).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            await asyncio.sleep(_RETRY_SECONDS)


async def first_token(url: str, model: str) -> float:
    """Have one real token made; seconds that it took. Raises `LaunchError` if the answer is an error."""
    async with _client() as client:
        while True:
            start = time.perf_counter()
            body = {"model": model, "prompt": "Once", "max_tokens": 1}
            answer = await client.post(f"{url}/v1/completions", json=body)
            if answer.status_code == httpx.codes.OK:
                return time.perf_counter() - start
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                raise LaunchError(f"a first token was asked for and refused: {answer.text}")
            await asyncio.sleep(_RETRY_SECONDS)


def _client() -> httpx.AsyncClient:
    # The first token of a large model may take long; the environment's proxies are not for loopback.
    return httpx.AsyncClient(timeout=60, trust_env=False)
