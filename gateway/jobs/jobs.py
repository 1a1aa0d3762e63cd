"""The jobs that a gateway works at."""

import asyncio

from gateway.api.background import Background
from gateway.http.own_requests import OwnRequests
from gateway.jobs.background import BackgroundResponses
from gateway.jobs.runner import Runner
from gateway.upstream.jobs import JobQueue
from gateway.upstream.response_store import ResponseStore

RESPONSES_AT_ONCE = 64
"""Background responses that a gateway works at. Further ones wait in Redis for any gateway."""


class Jobs:
    """Runners of all kinds of jobs that are kept."""

    def __init__(self, own: OwnRequests) -> None:
        self._own = own
        self._runners: list[Runner] = []

    def background(self, store: ResponseStore | None, queue: JobQueue | None) -> Background | None:
        """Where background responses are put; None if there are none."""
        if store is None or queue is None:
            return None
        runner = Runner(queue, BackgroundResponses(self._own, store).work, RESPONSES_AT_ONCE)
        self._runners.append(runner)
        return Background(store, queue, runner.wake)

    async def run(self) -> None:
        """Work at jobs until cancelled. Those that are not done go back to Redis."""
        async with asyncio.TaskGroup() as tasks:
            for runner in self._runners:
                tasks.create_task(runner.run())
            await asyncio.Event().wait()

    def drain(self) -> None:
        """Take no more jobs."""
        for runner in self._runners:
            runner.drain()
