"""Gateways that share what they keep in Redis, and work at jobs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx
import openai
import pytest
import pytest_asyncio
from fastapi import FastAPI

from gateway.app import Stores
from gateway.upstream.batch_store import BatchStore
from gateway.upstream.file_store import FileStore
from gateway.upstream.job_queue import JobQueue
from gateway.upstream.response_store import ResponseStore
from proto.rpc.line import Line
from tests.unit.gateway.conftest import JSON, FakeBackend, FakeTokenizer, app_of, serving, stores_of

MOST = 3
"""Jobs of one kind that a tenant may have at once."""


@pytest.fixture
def stores(line: Line, prefix: str) -> Stores:
    return stores_of(
        responses=ResponseStore(line, prefix, seconds=600, tenant_bytes=2**24, all_bytes=2**24),
        background=JobQueue(line, prefix, "response", MOST),
        batches=BatchStore(
            line, prefix, FileStore(line, prefix, seconds=86400, tenant_bytes=2**22, all_bytes=2**23)
        ),
        batch_queue=JobQueue(line, prefix, "batch", MOST),
    )


@dataclass
class Working:
    """A gateway that answers and works at jobs."""

    app: FastAPI
    client: openai.AsyncOpenAI
    http: httpx.AsyncClient
    _running: "asyncio.Task[None]" = field(repr=False)

    async def stop(self) -> None:
        """End its work at jobs, which go back to Redis."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


@dataclass
class Fleet:
    """Gateways of one deployment."""

    tokenizer: FakeTokenizer
    start: Callable[..., "asyncio.Future[Working]"]
    line: Line
    prefix: str

    async def expire(self, kind: str) -> None:
        """The leases of all jobs of a kind run out. Nobody renews one before another gateway has the job."""
        base = f"{self.prefix}jobs:{kind}:"
        (ids,) = await self.line.execute(("ZRANGE", f"{base}open", 0, -1))
        for one in ids:
            lost = ("HDEL", f"{base}job:{one.decode()}", "owner")
            await self.line.execute(lost, ("ZADD", f"{base}open", 0, one))


@pytest_asyncio.fixture
async def fleet(
    tokenizer: FakeTokenizer,
    backend: FakeBackend,
    stores: Stores,
    line: Line,
    prefix: str,
    keys_of: Callable[..., object],
) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:

        async def start(tenant: str = "a", works: bool = True) -> Working:
            app = app_of(backend, keys_of({"sk-a": "a", "sk-b": "b"}), stores=stores)  # type: ignore[arg-type]
            server = await stack.enter_async_context(serving(app))
            url = f"http://127.0.0.1:{server.port}"
            headers = JSON | {"Authorization": f"Bearer sk-{tenant}"}
            http = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, headers=headers)
            client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=f"sk-{tenant}", max_retries=0)
            running = asyncio.create_task(app.state.jobs.run() if works else asyncio.sleep(0))
            working = Working(app, client, http, running)
            stack.push_async_callback(http.aclose)
            stack.push_async_callback(client.close)
            stack.push_async_callback(working.stop)
            return working

        yield Fleet(tokenizer, start, line, prefix)  # type: ignore[arg-type]
