"""A runner: works at as many jobs as it may, gives back what it cannot end, stops when a lease is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.behalf import Behalf
from gateway.errors import Unavailable
from gateway.jobs import runner as runner_module
from gateway.jobs.runner import Runner
from gateway.upstream.job_queue import Job, JobQueue, LeaseLost
from ops.runtime.metric_names import JOBS_UNDER_WAY
from ops.runtime.metrics import METRICS
from proto.rpc.line import Line

SOMEBODY = Behalf("a", "a", False)
UNDER_WAY = METRICS.gauge(JOBS_UNDER_WAY, "test")


@pytest.fixture
def queue(line: Line, prefix: str) -> JobQueue:
    return JobQueue(line, prefix, "test", 100)


@asynccontextmanager
async def running(
    queue: JobQueue, work: Callable[[Job], Awaitable[None]], at_once: int = 2
) -> AsyncIterator[Runner]:
    runner = Runner(queue, work, at_once)
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


async def test_some_at_once_and_then_the_others(queue: JobQueue) -> None:
    now, most, done = set[str](), 0, list[str]()
    go_on = asyncio.Event()

    async def work(job: Job) -> None:
        nonlocal most
        now.add(job.id)
        most = max(most, len(now))
        await go_on.wait()
        now.remove(job.id)
        done.append(job.id)

    for number in range(5):
        await queue.add(str(number), SOMEBODY)
    async with running(queue, work, at_once=4):
        await until(lambda: len(now) == 2)
        go_on.set()
        await until(lambda: len(done) == 5)
        await until(lambda: UNDER_WAY.value == 0)  # the queue, too, knows that they are done
    assert most == 2
    assert sorted(done) == ["0", "1", "2", "3", "4"]
    assert await queue.take() is None


async def test_a_tenant_does_not_keep_others_waiting(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One alone has half of four places. The next two get the others, and two more have one each beside them:
    there is room for two."""
    monkeypatch.setattr(runner_module, "RESERVE", 2)
    now, go_on = set[str](), asyncio.Event()

    async def work(job: Job) -> None:
        now.add(job.id)
        await go_on.wait()

    tenants = [Behalf(name, name, False) for name in "abcdef"]
    for tenant in tenants:
        for number in range(4):
            await queue.add(f"{tenant.tenant}{number}", tenant)
    async with running(queue, work, at_once=4):
        await until(lambda: len(now) == 6)
        assert now == {"a0", "a1", "b0", "c0", "d0", "e0"}
        left = await queue.take("abcde")
        assert left is not None
        assert left.id == "f0"
        await queue.give_back(left)
        go_on.set()
        await until(lambda: len(now) == 24)


async def test_a_new_job_need_not_wait_for_the_next_look(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "LOOK_SECONDS", 10**6)
    done = list[str]()

    async def work(job: Job) -> None:
        done.append(job.id)

    async with running(queue, work) as runner:
        await asyncio.sleep(0)
        await queue.add("a", SOMEBODY)
        runner.wake()
        await until(lambda: done == ["a"])


async def test_who_stops_gives_back_what_is_under_way(queue: JobQueue) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work(job: Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await queue.add("a", SOMEBODY)
    async with running(queue, work) as runner:
        await begun.wait()
        runner.drain()
        await queue.add("b", SOMEBODY)
        runner.wake()
    assert ended.is_set()
    found = [job.id for _ in range(2) if (job := await queue.take())]
    assert sorted(found) == ["a", "b"], "neither is this runner's any more"


async def test_work_ends_when_its_lease_is_lost(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "LEASE_SECONDS", 0.03)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work(job: Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await queue.add("a", SOMEBODY)
    async with running(queue, work):
        await begun.wait()
        assert await queue.seize("a", "a") is not None
        async with asyncio.timeout(60):
            await ended.wait()


@pytest.mark.parametrize("error", [LeaseLost(), Unavailable("Away."), ValueError("a bug")])
async def test_a_job_that_fails_is_there_for_the_next_one(
    queue: JobQueue, error: Exception, line: Line, prefix: str
) -> None:
    tries = list[int]()

    async def work(job: Job) -> None:
        tries.append(job.takes)
        if len(tries) == 1:
            raise error

    await queue.add("a", SOMEBODY)
    async with running(queue, work) as runner:
        await until(lambda: len(tries) >= 1)
        if not isinstance(error, LeaseLost):  # with the lease lost there is nothing to wait for
            await line.execute(("ZADD", f"{prefix}jobs:test:open", 0, "a"))
            runner.wake()
        await until(lambda: len(tries) == 2)
    assert tries == [1, 1 if isinstance(error, LeaseLost) else 2]
