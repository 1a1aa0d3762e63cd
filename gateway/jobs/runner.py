"""Takes jobs out of Redis, and works at them as long as this gateway has their leases.

A job may last for a day. So tenants share a runner as they share other places: each may have as many jobs
under way as it leaves free, which are half of all for one that is alone, and in any case one.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gateway.errors import Unavailable
from gateway.upstream.job_queue import LEASE_SECONDS, Job, JobQueue, LeaseLost
from ops.runtime import metric_names as names
from ops.runtime.metrics import METRICS

LOOK_SECONDS = 5.0
"""Time between two looks for jobs whose gateways have died. Of a new job its own gateway knows at once."""

RESERVE = 256
"""Places beside the others, for tenants that have no job under way."""

logger = logging.getLogger(__name__)

Work = Callable[[Job], Awaitable[None]]
"""Works at a job until it is done. Whoever calls it ends the job. Raises `LeaseLost` or `Unavailable`."""


class Runner:
    """Works at jobs of one kind, some at once."""

    def __init__(self, queue: JobQueue, work: Work, at_once: int) -> None:
        """`at_once`: places for jobs, of which a tenant alone gets half."""
        self._queue = queue
        self._work = work
        self._at_once = at_once
        self._under_way: Counter[str] = Counter()
        """Jobs by tenant."""
        self._changed = asyncio.Event()
        self._draining = False
        self._gauge = METRICS.gauge(names.JOBS_UNDER_WAY, queue.kind)
        self._taken_over = METRICS.counter(names.JOBS_TAKEN_OVER, queue.kind)

    def wake(self) -> None:
        """There is a new job."""
        self._changed.set()

    def drain(self) -> None:
        """Take no more jobs."""
        self._draining = True

    async def run(self) -> None:
        """Until cancelled, take jobs and work at them. In the end they are given back."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                if job := await self._next():
                    self._begin(tasks, job)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._changed.wait()

    def _begin(self, tasks: asyncio.TaskGroup, job: Job) -> None:
        self._count(job.tenant, 1)
        if job.takes > 1:
            self._taken_over.add()
        doing = tasks.create_task(self._do(job), name=f"{self._queue.kind} {job.id}")
        doing.add_done_callback(lambda _: self._count(job.tenant, -1))

    def _count(self, tenant: str, more: int) -> None:
        self._under_way[tenant] += more
        self._under_way = +self._under_way  # without tenants that have none
        self._gauge.set(self._under_way.total())
        if more < 0:
            self._changed.set()

    async def _next(self) -> Job | None:
        free = self._at_once - self._under_way.total()
        if self._draining or free <= -RESERVE:
            return None
        full = [tenant for tenant, jobs in self._under_way.items() if jobs >= free]
        with suppress(Unavailable):
            return await self._queue.take(full)
        return None

    async def _do(self, job: Job) -> None:
        """Work at a job until it is done or its lease is lost."""
        working = asyncio.ensure_future(self._work(job))
        keeping = asyncio.ensure_future(self._keep(job))
        try:
            await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await self._finish(job, working)
            else:
                logger.warning("%s %s: its lease is lost", self._queue.kind, job.id)
        except asyncio.CancelledError:
            await _cancelled(working)
            with suppress(Unavailable):
                await self._queue.give_back(job)
            raise
        finally:
            await _cancelled(working, keeping)

    async def _finish(self, job: Job, working: "asyncio.Future[None]") -> None:
        """The work has returned or raised. If it has failed, the job waits until its lease has run out."""
        try:
            working.result()
            await self._queue.end(job)
        except LeaseLost:
            logger.info("%s %s: another has it now, or nobody wants it", self._queue.kind, job.id)
            with suppress(Unavailable):
                await self._queue.give_back(job)
        except Unavailable as error:
            logger.info("%s %s: %s It goes on later.", self._queue.kind, job.id, error.message)
            if self._draining:
                with suppress(Unavailable):
                    await self._queue.give_back(job)
        except Exception:
            logger.exception("%s %s: an unexpected error", self._queue.kind, job.id)

    async def _keep(self, job: Job) -> None:
        """Renew the lease. Returns when it is lost."""
        clock = asyncio.get_running_loop().time
        until = clock() + LEASE_SECONDS
        while clock() < until:
            await asyncio.sleep(LEASE_SECONDS / 3)
            with suppress(Unavailable):
                asked = clock()
                if not await self._queue.renew(job):
                    return
                until = asked + LEASE_SECONDS


async def _cancelled(*tasks: "asyncio.Future[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
