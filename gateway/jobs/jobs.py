"""The jobs that a gateway works at."""

import asyncio
from collections.abc import Callable

from gateway.api.batches.batches import Batches
from gateway.api.responses.background import Background
from gateway.http.own_requests import OwnRequests
from gateway.jobs.background import BackgroundResponses
from gateway.jobs.batch import BatchWork
from gateway.jobs.runner import Runner
from gateway.upstream.batch_store import BatchStore
from gateway.upstream.job_queue import JobQueue
from gateway.upstream.response_store import ResponseStore

RESPONSES_AT_ONCE = 128
"""Places for background responses that a gateway works at. Further ones wait in Redis for any gateway."""

BATCHES_AT_ONCE = 8
"""Places for batches that a gateway works at."""


class Jobs:
    """The runners of all kinds of jobs."""

    def __init__(self, own: OwnRequests) -> None:
        self._own = own
        self._runners: list[Runner] = []
        self._draining: list[Callable[[], None]] = []

    def background(self, store: ResponseStore | None, queue: JobQueue) -> Background | None:
        """Where background responses are put; None if responses are not kept."""
        if store is None:
            return None
        runner = Runner(queue, BackgroundResponses(self._own, store).work, RESPONSES_AT_ONCE)
        self._runners.append(runner)
        return Background(store, queue, runner.wake)

    async def run(self) -> None:
        """Work at jobs until cancelled. Jobs that are not done then are free for other gateways."""
        async with asyncio.TaskGroup() as tasks:
            for runner in self._runners:
                tasks.create_task(runner.run())
            await asyncio.Event().wait()

    def batches(self, store: BatchStore, queue: JobQueue, at_once: int) -> Batches:
        """Where batches are put. `at_once`: lines of one that are asked at once."""
        work = BatchWork(self._own, store, at_once)
        self._draining.append(work.drain)
        runner = Runner(queue, work.work, BATCHES_AT_ONCE)
        self._runners.append(runner)
        return Batches(store, queue, runner.wake)

    def drain(self) -> None:
        """Take no more jobs, and begin no more requests of batches."""
        for drain in self._draining:
            drain()
        for runner in self._runners:
            runner.drain()
