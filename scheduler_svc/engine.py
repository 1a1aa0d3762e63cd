"""The core with its I/O: requests come as calls, workers take calls at their door, results are routed back.

No decision is made here. Everything runs in one event loop, so the core needs no locks.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc

from proto.scheduler_pb2 import EmbedTokensResponse
from proto.worker_pb2 import StepResult
from scheduler_svc.admission import Admission
from scheduler_svc.call import Call
from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import Gain, Outcome
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup, Watch
from scheduler_svc.embedding import first_dimensions
from scheduler_svc.settings import SchedulerSettings
from scheduler_svc.wire import Logprobs, limits_from, response_to, result_from
from scheduler_svc.worker_link import WorkerLink

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
"""Pause after a worker took the call at the door and failed before it was ready."""

Announce = Callable[[int, int], None]
"""Is called with the number of workers and the longest sequence, in tokens, that one of them can hold."""


class Engine:
    """The fleet with its I/O: a client of `quire.Worker` that serves `Call`s."""

    def __init__(self, worker_stub: Any, settings: SchedulerSettings, announce: Announce) -> None:
        """`worker_stub`: a stub of `quire.Worker`. `announce`: called whenever a worker has come or gone."""
        self._stub = worker_stub
        self._settings = settings
        self._announce = announce
        self._fleet = Fleet(settings.step_tokens or sys.maxsize, settings.policy, settings.speculation)
        self._admission = Admission(settings.max_waiting_requests, settings.max_waiting_tokens)
        self._calls: dict[SequenceGroup, Call] = {}
        self._links: dict[Scheduler, WorkerLink] = {}
        self._serving: set[asyncio.Task[None]] = set()

    def open(self, request: Request, watch: Watch | None = None) -> tuple[SequenceGroup, Call]:
        """Take on a request, whose answer the call delivers. Raises `TooMuchWaits`.

        `watch`: is called with a sequence whenever its state has changed.
        """
        if self._admission.limited and not request.resumed:  # a request that has begun is not refused
            self._admission.check(self._fleet.waiting(), len(request.prompt), time.monotonic())
        call = Call()
        group, outcome = self._fleet.accept(request, watch)
        self._calls[group] = call
        if not group.unfinished:
            call.end()
        self._deliver(outcome, {})
        return group, call

    def end_sequence(self, group: SequenceGroup, index: int) -> None:
        """End one sequence of a request; its caller wants no more of it."""
        self._fleet.end_sequence(group, index)
        if not group.unfinished and group in self._calls:
            self._calls[group].end()
        self._wake()

    def close(self, group: SequenceGroup) -> None:
        """End a request; its blocks and slots are free from now on."""
        if self._calls.pop(group, None) is not None:
            self._fleet.cancel(group)
            self._wake()

    async def run(self) -> None:
        """Keep one call waiting at the workers' door, and serve every worker that takes one."""
        try:
            while True:
                call = self._stub.Execute(wait_for_ready=True)
                try:
                    limits = await _ready(call)
                except (grpc.aio.AioRpcError, WorkerFault) as error:
                    log.warning("a worker failed before it was ready: %s", _reason(error))
                    call.cancel()
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                except asyncio.CancelledError:
                    call.cancel()
                    raise
                task = asyncio.ensure_future(self._serve(call, limits))
                self._serving.add(task)
                task.add_done_callback(self._returned)
        finally:
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, call: Any, limits: WorkerLimits) -> None:
        """Serve one worker until it is lost; then its requests go on elsewhere."""
        scheduler, outcome = self._fleet.add_worker(limits)
        link = self._links[scheduler] = WorkerLink(call, scheduler, self._settings.plan_depth)
        log.info("a worker joined: %d blocks of %d tokens", limits.num_blocks, limits.block_size)
        if self._settings.speculation == "draft" and not limits.can_draft:
            log.warning("the worker has no draft model (QUIRE_DRAFT_MODEL): it makes no drafts")
        try:
            self._deliver(outcome, {})
            self._announce(len(self._links), self._fleet.max_length)
            await link.run(lambda message: self._on_result(scheduler, message))
        except (grpc.aio.AioRpcError, WorkerFault) as error:
            log.warning("a worker was lost: %s", _reason(error))
        except Exception:
            # Whatever failed, it concerns this worker alone: its requests go on with another.
            log.exception("a worker was given up")
        finally:
            del self._links[scheduler]
            self._deliver(self._fleet.remove_worker(scheduler), {})
            self._announce(len(self._links), self._fleet.max_length)

    def _returned(self, task: "asyncio.Task[None]") -> None:
        self._serving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("requests of a lost worker may be lost, too", exc_info=error)

    def _on_result(self, scheduler: Scheduler, message: StepResult) -> None:
        result, logprobs = result_from(message)
        outcome = scheduler.complete(result)
        self._fleet.settle(scheduler, outcome)
        self._admission.note(self._fleet.admitted_tokens, time.monotonic())
        self._deliver(outcome, logprobs)

    def _deliver(self, outcome: Outcome, logprobs: Logprobs) -> None:
        """Give every call its gains in one response, then let the workers plan again."""
        by_group: dict[SequenceGroup, list[Gain]] = {}
        for gain in outcome.gains:
            by_group.setdefault(gain.group, []).append(gain)
        for group, gains in by_group.items():
            call = self._calls[group]
            response = response_to(gains, logprobs)
            if not call.begun:
                response.cached_tokens = group.cached_tokens or 0
            call.put(response)
            if not group.unfinished:
                call.end()
        for group, embedding in outcome.embedded:
            shortened = first_dimensions(embedding, group.request.dimensions)
            self._calls[group].put(EmbedTokensResponse(embedding=shortened))
            self._calls[group].end()
        for group, error in outcome.failed:
            self._calls[group].end(error)
        self._wake()

    def _wake(self) -> None:
        for link in self._links.values():
            link.wake()


async def _ready(call: Any) -> WorkerLimits:
    """Wait until a worker takes the call; its limits. Raises `WorkerFault`, `grpc.aio.AioRpcError`."""
    event = await call.read()
    if event is grpc.aio.EOF or event.WhichOneof("event") != "ready":
        raise WorkerFault("its first event is not `ready`")
    return limits_from(event.ready)


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
