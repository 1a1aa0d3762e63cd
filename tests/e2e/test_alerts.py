"""Each alert fires when its fault is made in a running deployment, and not before.

The rules are those of `ops/watch`, in a hurry: what lasts minutes there lasts seconds here.
"""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import openai
import pytest
import yaml

from ops.launcher.redis_server import RedisServer
from tests.support.asking import ask, attempts
from tests.support.deployment import Deployment
from tests.support.prometheus import MISSING, WATCH, Prometheus, reading, wait_for

RULES = (WATCH / "alerts.yml").read_text(encoding="utf-8")
OF_A_FULL_ONE = {"QuireMemoryFull", "QuireStalled", "QuireRefuses", "QuireSlow", "QuireQueueLag"}
OF_A_BROKEN_ONE = {
    *("QuireNoWorker", "QuireNoScheduler", "QuireNoTokenizer"),
    *("QuireErrors", "QuireWorkersLost", "QuireRestarts"),
    *("QuireLeasesLost", "QuireDeadLetters", "QuireRedisFull", "QuireRedisAway", "QuireDown"),
}
QUESTION = {"model": "quire-tiny", "prompt": "An owl", "ignore_eos": True}

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING), pytest.mark.timeout(900)]


def hurried(rules: str) -> str:
    """The same, with windows of 8 s for each minute, and what must last lasts 2 s."""

    def window(found: re.Match[str]) -> str:
        return f"[{8 * int(found[1])}s{found[2] and ':1s'}]"

    return re.sub(r"\[(\d+)m((?::10s)?)\]", window, re.sub(r"for: \d+m", "for: 2s", rules))


@asynccontextmanager
async def asked(
    deployment: Deployment, count: int, tokens: int, **further: object
) -> AsyncIterator[list["asyncio.Task[int]"]]:
    """The statuses of `count` answers of so many tokens, which are asked for now and given up at the end.

    `further`: fields of the request.
    """
    async with httpx.AsyncClient(base_url=deployment.url, timeout=None) as client:

        async def status() -> int:
            answer = await client.post("/v1/completions", json=QUESTION | {"max_tokens": tokens} | further)
            return answer.status_code

        tasks = [asyncio.create_task(status()) for _ in range(count)]
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def client_of(deployment: Deployment) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=240)


async def comes_true(condition: Callable[[], object], seconds: float = 120.0) -> bool:
    """`wait_for`, beside tasks that ask."""
    return await asyncio.to_thread(wait_for, condition, seconds)


async def fire(prometheus: Prometheus, *alerts: str) -> None:
    """Return once these alerts fire."""
    assert await comes_true(lambda: set(alerts) <= prometheus.firing()), (alerts, prometheus.firing())


async def shown(prometheus: Prometheus) -> None:
    """Return once each process has shown its metrics, which comes up to five seconds after its start."""
    everything = 'sum(quire:workers) > 0 and on () quire:door_calls{service="Tokenizer"}'
    assert await comes_true(lambda: prometheus.query(everything) and not prometheus.firing())


def fired(prometheus: Prometheus) -> set[str]:
    """The names of all alerts that have fired."""
    samples = prometheus.query('max_over_time(ALERTS{alertstate="firing"}[1h])')
    return {sample["metric"]["alertname"] for sample in samples}


async def test_a_deployment_that_is_full_and_hangs(redis_server: RedisServer, tmp_path: Path) -> None:
    settings = {"QUIRE_KV_MEMORY": "16MiB", "QUIRE_MAX_WAITING_REQUESTS": "8", "QUIRE_LEASE_SECONDS": "60"}
    deployment = Deployment(redis_server, tmp_path, **settings)
    deployment.spawn("tokenizer_svc")
    try:
        deployment.start()
        with reading(deployment, tmp_path, hurried(RULES)) as prometheus:
            await a_worker_hangs(deployment, prometheus)
            await a_tokenizer_hangs(deployment, prometheus)
            assert fired(prometheus) >= OF_A_FULL_ONE
    finally:
        for service in ("gpu_worker", "tokenizer_svc"):
            for process in deployment.processes[service]:
                process.send_signal(signal.SIGCONT)
        deployment.stop()


async def a_worker_hangs(deployment: Deployment, prometheus: Prometheus) -> None:
    """While one sequence has nearly all blocks, and others wait for some."""
    (worker,) = deployment.processes["gpu_worker"]
    async with asked(deployment, count=1, tokens=20) as tasks:
        assert await tasks[0] == 200
    await shown(prometheus)
    assert not await comes_true(prometheus.firing, seconds=5)
    for attempt in attempts():
        begun, stopped = asyncio.Event(), asyncio.Event()

        def listen(tokens: int, begun: asyncio.Event = begun, stopped: asyncio.Event = stopped) -> None:
            begun.set()
            if tokens >= 1960 and not stopped.is_set():
                worker.send_signal(signal.SIGSTOP)
                stopped.set()

        async with client_of(deployment) as client:
            asking = asyncio.create_task(ask(client, listen, tokens=2030))
            await begun.wait()
            async with asked(deployment, count=4, tokens=1500):
                await stopped.wait()
                await asyncio.sleep(8)  # by then it is known what was so when the worker was stopped
                attempt.hit = bool(prometheus.query("vllm:kv_cache_usage_perc > 0.95"))
                if attempt.hit:
                    await fire(prometheus, "QuireMemoryFull", "QuireStalled")
                    await others_wait_or_are_refused(deployment, prometheus)
                worker.send_signal(signal.SIGCONT)
                await asking


async def others_wait_or_are_refused(deployment: Deployment, prometheus: Prometheus) -> None:
    """The worker goes on when some have waited for longer than `QuireSlow` allows."""
    async with asked(deployment, count=100, tokens=4) as tasks:
        waited = asyncio.create_task(asyncio.sleep(15))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert {await task for task in done} == {429}
        await fire(prometheus, "QuireRefuses")
        await waited
        deployment.processes["gpu_worker"][0].send_signal(signal.SIGCONT)
        await fire(prometheus, "QuireSlow")


async def a_tokenizer_hangs(deployment: Deployment, prometheus: Prometheus) -> None:
    """Redis gives it a call, which nobody else takes while it has its lease."""
    tokenizer, _ = deployment.processes["tokenizer_svc"]
    tokenizer.send_signal(signal.SIGSTOP)
    async with asked(deployment, count=8, tokens=4):
        await fire(prometheus, "QuireQueueLag")
        tokenizer.send_signal(signal.SIGCONT)


async def test_a_deployment_whose_processes_break(redis_server: RedisServer, tmp_path: Path) -> None:
    deployment = Deployment(redis_server, tmp_path)
    try:
        deployment.start()
        with reading(deployment, tmp_path, hurried(RULES)) as prometheus:
            await shown(prometheus)
            assert not await comes_true(prometheus.firing, seconds=5)
            await workers_die(deployment, prometheus)
            await others_break(deployment, prometheus)
            assert fired(prometheus) >= OF_A_BROKEN_ONE
    finally:
        deployment.stop()


async def workers_die(deployment: Deployment, prometheus: Prometheus) -> None:
    """Until the one request that is there is refused for it. It would take minutes on any machine."""
    started = 'sum(changes(quire:steps_total{engine=~"scheduler.*"}[8s])) > 0'
    async with asked(deployment, count=1, tokens=10**6, rolling_context=True) as (task,):
        for _ in range(8):
            assert await comes_true(lambda: task.done() or prometheus.query(started))
            if task.done():
                break
            deployment.kill("gpu_worker")
            await fire(prometheus, "QuireNoWorker")
            worker = deployment.spawn("gpu_worker")
            await asyncio.to_thread(deployment.wait_served, "gpu_worker", worker)
        assert await task == 500
    await fire(prometheus, "QuireErrors", "QuireWorkersLost")


async def others_break(deployment: Deployment, prometheus: Prometheus) -> None:
    (tokenizer,) = deployment.processes["tokenizer_svc"]
    tokenizer.send_signal(signal.SIGSTOP)
    await asyncio.sleep(3)  # three times as long as its lease
    tokenizer.send_signal(signal.SIGCONT)
    await fire(prometheus, "QuireLeasesLost")
    (door,) = deployment.redis.scan_iter(f"{deployment.prefix}calls:Tokenizer:*")
    deployment.redis.xadd(door, {b"garbage": b"\xff"})
    await fire(prometheus, "QuireDeadLetters")
    await redis_fails(deployment, prometheus)
    for service, alert in (("scheduler_svc", "QuireNoScheduler"), ("tokenizer_svc", "QuireNoTokenizer")):
        deployment.kill(service)
        await fire(prometheus, alert)
        await asyncio.to_thread(deployment.wait_served, service, deployment.spawn(service))
    for _ in range(3):
        known = {sample["metric"]["engine"] for sample in prometheus.query(STARTS)}
        deployment.kill("tokenizer_svc")
        deployment.spawn("tokenizer_svc")
        assert await comes_true(
            lambda: {sample["metric"]["engine"] for sample in prometheus.query(STARTS)} - known  # noqa: B023
        )
    await fire(prometheus, "QuireRestarts")
    deployment.kill("gateway")
    await fire(prometheus, "QuireDown")


async def redis_fails(deployment: Deployment, prometheus: Prometheus) -> None:
    """It becomes full, and then read-only: nothing else fires, though nothing is known of the others."""
    others = {"QuireDown", "QuireNoWorker", "QuireNoScheduler", "QuireNoTokenizer"}
    used = deployment.redis.info("memory")["used_memory"]
    try:
        deployment.redis.config_set("maxmemory", int(used / 0.92))
        await fire(prometheus, "QuireRedisFull")
        deployment.redis.config_set("maxmemory", used // 2)
        assert await comes_true(lambda: prometheus.query("quire:redis_up == 0 unless on () quire:workers"))
        assert not await comes_true(lambda: prometheus.firing() & {*others, "QuireRedisAway"}, seconds=10)
        deployment.redis.config_set("min-replicas-to-write", 1)
        deployment.redis.config_set("maxmemory", 0)
        await fire(prometheus, "QuireRedisAway")
        assert not prometheus.firing() & others
    finally:
        deployment.redis.config_set("maxmemory", 0)
        deployment.redis.config_set("min-replicas-to-write", 0)
    assert await comes_true(lambda: prometheus.query("quire:redis_up == 1 and on () quire:workers"))


STARTS = 'quire:process_start_time_seconds{service="tokenizer"}'


def test_every_alert_is_among_them() -> None:
    (group,) = yaml.safe_load(RULES)["groups"]
    assert {rule["alert"] for rule in group["rules"]} == OF_A_FULL_ONE | OF_A_BROKEN_ONE
