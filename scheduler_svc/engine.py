"""The core at work: requests come in as calls, workers come in through their door, results are routed.

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


class Engine:
    """The fleet with its I/O: a client of `quire.Worker` that serves `Call`s."""

    def __init__(self, worker_stub: Any, settings: SchedulerSettings, announce: Announce) -> None:
        """`announce(workers, max_model_len)` is called whenever a worker has come or gone."""
        self._stub = worker_stub
        self._settings = settings
        self._announce = announce
        self._fleet = Fleet(settings.step_tokens or sys.maxsize, settings.policy, settings.speculation)
        self._admission = Admission(settings.max_waiting_requests, settings.max_waiting_tokens)
        self._calls: dict[SequenceGroup, Call] = {}
        self._links: dict[Scheduler, WorkerLink] = {}
        self._lent: set[asyncio.Task[None]] = set()

    def open(self, request: Request, watch: Watch | None = None) -> tuple[SequenceGroup, Call]:
        """Take on a request; what becomes of it comes out of the call. Raises `TooMuchWaits`.

        `watch`: is told of the states of its sequences.
        """
        if self._admission.limited and not request.resumed:  # what has begun is not broken off
            self._admission.check(self._fleet.line(), len(request.prompt), time.monotonic())
        call = Call()
        group, outcome = self._fleet.accept(request, watch)
        self._calls[group] = call
        if not group.unfinished:
            call.end()
        self._deliver(outcome, {})
        return group, call

    def end_sequence(self, group: SequenceGroup, index: int) -> None:
        """One sequence of a request is wanted no longer."""
        self._fleet.end_sequence(group, index)
        if not group.unfinished and group in self._calls:
            self._calls[group].end()
        self._wake()

    def close(self, group: SequenceGroup) -> None:
        """Nothing more is wanted of a request: what it holds is free from now on."""
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
                    log.warning("a worker could not be had: %s", _reason(error))
                    call.cancel()
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                except asyncio.CancelledError:
                    call.cancel()
                    raise
                task = asyncio.ensure_future(self._serve(call, limits))
                self._lent.add(task)
                task.add_done_callback(self._returned)
        finally:
            for task in self._lent:
                task.cancel()
            await asyncio.gather(*self._lent, return_exceptions=True)

    async def _serve(self, call: Any, limits: WorkerLimits) -> None:
        """Serve one worker until it is lost; then its requests go on elsewhere."""
        scheduler, outcome = self._fleet.add_worker(limits)
        link = self._links[scheduler] = WorkerLink(call, scheduler, self._settings.plan_depth)
        log.info("a worker has joined: %d blocks of %d tokens", limits.num_blocks, limits.block_size)
        if self._settings.speculation == "draft" and not limits.can_draft:
            log.warning("it has no draft model (QUIRE_DRAFT_MODEL): no drafts from it")
        try:
            self._deliver(outcome, {})
            self._announce(len(self._links), self._fleet.max_length)
            await link.run(lambda message: self._on_result(scheduler, message))
        except (grpc.aio.AioRpcError, WorkerFault) as error:
            log.warning("a worker is lost: %s", _reason(error))
        except Exception:
            # Whatever it was, it belongs to this worker: the requests go on with another.
            log.exception("a worker is given up")
        finally:
            del self._links[scheduler]
            self._deliver(self._fleet.remove_worker(scheduler), {})
            self._announce(len(self._links), self._fleet.max_length)

    def _returned(self, task: "asyncio.Task[None]") -> None:
        self._lent.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the requests of a lost worker may be lost too", exc_info=error)

    def _on_result(self, scheduler: Scheduler, message: StepResult) -> None:
        result, logprobs = result_from(message)
        outcome = scheduler.complete(result)
        self._fleet.settle(scheduler, outcome)
        self._admission.note(self._fleet.admitted_tokens, time.monotonic())
        self._deliver(outcome, logprobs)

    def _deliver(self, outcome: Outcome, logprobs: Logprobs) -> None:
        """Give every call what it gained, in one response; then let the workers' plans take note."""
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
    """What the worker that takes the call has to offer."""
    event = await call.read()
    if event is grpc.aio.EOF or event.WhichOneof("event") != "ready":
        raise WorkerFault("its first event is not that it is ready")
    return limits_from(event.ready)


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
