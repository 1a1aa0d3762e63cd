"""What hangs instead of dying: one of a worker's ranks, whole processes that go on later, Redis."""

import asyncio
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from ops.launcher.redis_server import RedisServer
from ops.model_directory.settings import SHIPPED_DRAFT
from tests.support.asking import Answer, ask, attempts
from tests.support.deployment import ROOT, SERVICES, Deployment, Process, started

IMPATIENT = """
import runpy, signal
from gpu_worker.watchdog import Watchdog
Watchdog.__init__.__defaults__ = (6.0, 60.0)  # it looks every half second
Watchdog._limit = lambda watchdog, tokens: 600.0
def lose_patience(*_):
    Watchdog._limit = lambda watchdog, tokens: 0.0
signal.signal(signal.SIGUSR1, lose_patience)
runpy.run_module("gpu_worker", run_name="__main__")
"""
"""A worker that gives its device ten minutes, and no more time from SIGUSR1 on."""
QUESTION = {"temperature": 0.9, "seed": 3}


class Impatient(Deployment):
    """Workers of two ranks, that do not wait long for each other."""

    def spawn(self, service: str, root: Path = ROOT) -> Process:
        if service != "gpu_worker":
            return super().spawn(service, root)
        command, log = (sys.executable, "-c", IMPATIENT), self.directory / "gpu_worker.log"
        return self.add(service, started(command, self.environment_of(service), log, root))


@pytest.fixture
def two_ranks(redis_server: RedisServer, tmp_path: Path) -> Iterator[Deployment]:
    settings = {"QUIRE_TENSOR_PARALLEL": "2", "QUIRE_MODEL_NAME": "quire-tiny", "QUIRE_KV_MEMORY": "32MiB"}
    deployment = Impatient(redis_server, tmp_path, SHIPPED_DRAFT, **settings)
    try:
        yield deployment.start()
    finally:
        deployment.stop()


def client_of(deployment: Deployment) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=240)


async def begin_to_ask(
    client: openai.AsyncOpenAI, on_tokens: Callable[[int], None] = lambda _: None
) -> "asyncio.Task[Answer]":
    """An answer that has come to its twentieth token."""
    begun = asyncio.Event()

    def listen(tokens: int) -> None:
        on_tokens(tokens)
        if tokens >= 20:
            begun.set()

    asking = asyncio.create_task(ask(client, listen, **QUESTION))
    await begun.wait()
    return asking


async def test_a_rank_that_hangs_ends_its_worker(two_ranks: Deployment) -> None:
    (worker,) = two_ranks.processes["gpu_worker"]
    (follower,) = psutil.Process(worker.pid).children()
    async with client_of(two_ranks) as client:
        expected = await ask(client, **QUESTION)
        for attempt in attempts():
            asking = await begin_to_ask(client)
            follower.suspend()
            await asyncio.sleep(0.5)  # what had been computed arrives
            attempt.hit = not asking.done()
            if not attempt.hit:
                follower.resume()
        other = two_ranks.spawn("gpu_worker")
        await asyncio.to_thread(two_ranks.wait_served, "gpu_worker", other)
        worker.send_signal(signal.SIGUSR1)
        assert await asyncio.to_thread(worker.wait, 60) == 1
        assert await asking == expected
    await asyncio.to_thread(follower.wait, 60)  # stopped as it was, it has not outlived its worker
    (error,) = two_ranks.errors()
    assert "a step of 1 tokens has not ended" in error


@pytest.fixture(scope="module")
def expected(deployment: Deployment) -> Answer:
    """What is answered while nothing hangs."""

    async def found() -> Answer:
        async with client_of(deployment) as client:
            return await ask(client, **QUESTION)

    return asyncio.run(found())


# --- whole processes ---


@asynccontextmanager
async def lost_leases(deployment: Deployment, services: tuple[str, ...]) -> AsyncIterator[None]:
    """Processes that go on in the block must say that they do so without their calls."""

    def said() -> list[int]:
        logs = [(deployment.directory / f"{service}.log").read_text() for service in services]
        return [log.count("lost the lease") for log in logs]

    before = said()
    yield
    async with asyncio.timeout(60):
        while any(now == then for now, then in zip(said(), before, strict=True)):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("victims", [("scheduler_svc",), SERVICES], ids=" ".join)
async def test_stopped_for_longer_than_a_lease(
    deployment: Deployment, client: openai.AsyncOpenAI, expected: Answer, victims: tuple[str, ...]
) -> None:
    """One that nobody replaces, or all."""
    stopped = [deployment.processes[victim][-1] for victim in victims]
    for attempt in attempts():
        asking = await begin_to_ask(client)
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.5)
        attempt.hit = not asking.done()
        async with lost_leases(deployment, victims):
            for process in stopped:
                process.send_signal(signal.SIGCONT)
        assert await asking == expected


@pytest.mark.parametrize("victim", SERVICES[:3])
async def test_stopped_while_another_takes_its_work(
    deployment: Deployment, client: openai.AsyncOpenAI, expected: Answer, victim: str
) -> None:
    stopped = deployment.processes[victim][-1]
    for attempt in attempts():
        tokens: list[int] = []
        asking = await begin_to_ask(client, tokens.append)
        stopped.send_signal(signal.SIGSTOP)
        other = deployment.spawn(victim)
        at_stop = tokens[-1]
        while tokens[-1] < at_stop + 40 and not asking.done():
            await asyncio.sleep(0.001)
        attempt.hit = not asking.done()
        if not attempt.hit:
            await asyncio.sleep(1.5)
        async with lost_leases(deployment, (victim,)):
            stopped.send_signal(signal.SIGCONT)
            assert await asking == expected
        other.kill()  # the one that was stopped has to do
        other.wait()
        assert await ask(client, **QUESTION) == expected


# --- Redis ---


async def test_a_redis_that_is_stopped_for_longer_than_a_lease(
    redis_server: RedisServer, deployment: Deployment, client: openai.AsyncOpenAI, expected: Answer
) -> None:
    assert redis_server.process is not None
    for attempt in attempts():
        asking = await begin_to_ask(client)
        redis_server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.5)
        attempt.hit = not asking.done()
        async with lost_leases(deployment, SERVICES):
            redis_server.process.send_signal(signal.SIGCONT)
        assert await asking == expected


async def test_a_redis_that_has_lost_its_data(
    redis_server: RedisServer, deployment: Deployment, client: openai.AsyncOpenAI, expected: Answer
) -> None:
    for attempt in attempts():
        asking = await begin_to_ask(client)
        redis_server.kill()
        for path in redis_server.directory.glob("appendonly*"):  # a file, or since Redis 7 a directory
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        attempt.hit = not asking.done()
        async with lost_leases(deployment, SERVICES):
            redis_server.start()
        assert await asking == expected


async def test_a_redis_that_is_full_for_a_while(
    deployment: Deployment, client: openai.AsyncOpenAI, expected: Answer
) -> None:
    """Nothing comes and nothing is lost, leases neither, if the machine does not stall for as long as one."""
    logs = [(deployment.directory / f"{service}.log") for service in SERVICES]
    for attempt in attempts():
        lost = [log.read_text().count("lost the lease") for log in logs]
        asking = await begin_to_ask(client)
        deployment.redis.config_set("maxmemory", "1")
        await asyncio.sleep(1.5)
        attempt.hit = not asking.done()
        health = await asyncio.to_thread(httpx.get, f"{deployment.url}/health/ready", timeout=60)
        assert (health.status_code, health.json()["missing"]) == (503, ["message queue"])
        deployment.redis.config_set("maxmemory", "0")
        assert await asking == expected
        attempt.hit &= [log.read_text().count("lost the lease") for log in logs] == lost
