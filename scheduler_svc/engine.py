"""The core with its I/O: requests come as calls, workers take calls at their door, results are routed back.

No decision is made here. Everything runs in one event loop, so the core needs no locks.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import grpc

from proto.rpc import from_outside
from proto.rpc.resume import RAISED
from proto.sampling_pb2 import PredictedTokens
from proto.scheduler_pb2 import EmbedTokensResponse, GenerateResponse, PromptScores
from proto.worker_pb2 import StepResult, WorkerReady
from scheduler_svc import progress
from scheduler_svc.admission import Admission
from scheduler_svc.call import Call
from scheduler_svc.core.drafters import DRAFTERS
from scheduler_svc.core.errors import HandedOver, NoSuchWorker, WorkerFault
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import Gain, Outcome
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup, Watch
from scheduler_svc.core.suspicion import Loss
from scheduler_svc.embedding import first_dimensions
from scheduler_svc.guard import Fail, Guard
from scheduler_svc.measures import Measures, RequestTimes
from scheduler_svc.recording.recordings import Recordings
from scheduler_svc.recording.tape import RecordedScheduler
from scheduler_svc.settings import SchedulerSettings
from scheduler_svc.wire import Logprobs, limits_from, response_to, result_from
from scheduler_svc.worker_link import WorkerLink

log = logging.getLogger(__name__)

STRANDED_SECONDS = 30.0
"""Seconds for which a request waits for a worker that can go on with its answer; up to half as long again."""
RETRY_SECONDS = 0.5
"""Pause after a worker took the call at the door and failed before it was ready."""

Offer = Mapping[str, Any]
"""What a scheduler's lease says of its workers."""

Announce = Callable[[int, int], None]
"""Is called with the number of workers and the longest sequence, in tokens, that one of them can hold."""


class Engine:
    """The fleet with its I/O: a client of `quire.Worker` that serves `Call`s."""

    def __init__(self, worker_stub: Any, settings: SchedulerSettings, announce: Announce, fail: Fail) -> None:
        """`worker_stub`: a stub of `quire.Worker`. `announce`: called whenever a worker has come or gone, or
        `stalled` has changed.
        `fail`: called once the core has failed."""
        self._guard = Guard(self._core_failed)
        self._fail = fail
        self._stub = worker_stub
        self._settings = settings
        self._announce = announce
        self.fleet = Fleet(
            settings.step_tokens or sys.maxsize,
            settings.policy,
            settings.speculation,
            settings.step_seconds,
            Scheduler if settings.recordings is None else RecordedScheduler,
        )
        directory = settings.recordings
        self._recordings = None if directory is None else Recordings(directory, settings.served_name)
        self._admission = Admission(settings.max_waiting_requests, settings.max_waiting_tokens)
        self.measures = Measures(settings.served_name)
        self._times: dict[SequenceGroup, RequestTimes] = {}
        self._calls: dict[SequenceGroup, Call] = {}
        self.links: dict[Scheduler, WorkerLink] = {}
        """The workers that serve this scheduler."""

    @property
    def unfinished(self) -> int:
        """Number of requests that have not ended."""
        return len(self._calls)

    def open(self, request: Request, watch: Watch | None = None) -> tuple[SequenceGroup, Call]:
        """Take on a request, whose answer the call delivers. Raises `TooMuchWaits`.

        `watch`: is called with a sequence whenever its state has changed.
        """
        if self._admission.limited and not request.resumed:  # a request that has begun is not refused
            waiting, now = self.fleet.waiting(), time.monotonic()
            self._admission.check(waiting, request.tenant, len(request.prompt), now)
        call, times = Call(), RequestTimes(self.measures, watch, request.traceparent)
        with self._guard:
            group, outcome = self.fleet.accept(request, times)
            self._calls[group], self._times[group] = call, times
            if not group.unfinished:
                call.end()
            self._deliver(outcome, {})
            self._wake(self._links_for(group))
        return group, call

    def hand_over(self, offers: Sequence[Offer] | None = None) -> None:
        """End the calls that go on elsewhere: their callers make them anew, with another scheduler.

        `offers`: what the leases of other schedulers say of their workers; None: end all. What a suspect
        is suspected of goes along, or a request that ends one worker after the other would go back and forth
        for ever."""
        for group, call in self._calls.items():
            if offers is None or any(_goes_on(group, offer) for offer in offers):
                call.end(HandedOver(suspect=group.suspicion is not None))

    def end_sequence(self, group: SequenceGroup, index: int) -> None:
        """End one sequence of a request; its caller wants no more of it."""
        with self._guard:
            links = self._links_for(group)
            self.fleet.end_sequence(group, index)
            if not group.unfinished and group in self._calls:
                self._calls[group].end()
            self._wake(links)

    def close(self, group: SequenceGroup) -> None:
        """End a request; its blocks and slots are free from now on."""
        if self._calls.pop(group, None) is not None:
            self.measures.ended(group, self._times.pop(group))
            with self._guard:
                links = self._links_for(group)
                self.fleet.cancel(group)
                self._wake(links)

    async def record(self) -> None:
        """Write a recording of each worker."""
        for scheduler in list(self.links):
            await asyncio.to_thread(self._save, scheduler, "it was asked for")

    def _core_failed(self, error: BaseException) -> None:
        """What led to this is written at once: when `fail` returns, the process may be about to end."""
        for scheduler in self.links:
            self._save(scheduler, f"the core failed: {error!r}")
        self._fail(error)

    def _save(self, scheduler: Scheduler, reason: str) -> None:
        """Write what is on tape, if anything is. An error is logged: nobody waits for the file."""
        if self._recordings is None or not isinstance(scheduler, RecordedScheduler):
            return
        try:
            recording = scheduler.tape.take().recording()
            recording.reason = reason
            recording.worker.CopyFrom(scheduler.tape.worker)
            path = self._recordings.save(recording, len(self.links))
            log.warning("recorded: %s, because %s", path, reason)
        except Exception:
            log.exception("the recording could not be written")

    def read_metrics(self) -> None:
        """Set the metrics of what is so at this moment."""
        self.measures.read(self.fleet)

    async def run(self) -> None:
        """Keep one call waiting at the workers' door, and serve every worker that takes one.

        Raises what the core has raised: its state is undefined then.
        """
        async with asyncio.TaskGroup() as workers:
            workers.create_task(self._end_stranded())
            workers.create_task(self._watch_progress())
            while True:
                call = self._stub.Execute(wait_for_ready=True)
                try:
                    ready = await _ready(call)
                    limits = limits_from(ready)
                except asyncio.CancelledError:
                    call.cancel()
                    raise
                except Exception as error:  # a worker may answer with anything
                    log.warning("a worker failed before it was ready: %s", _reason(error))
                    call.cancel()
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    workers.create_task(self._serve(call, ready, limits))

    async def _end_stranded(self) -> None:
        """For ever, end requests that have waited too long for a worker of their fingerprint."""
        since: dict[SequenceGroup, float] = {}
        while True:
            await asyncio.sleep(STRANDED_SECONDS / 2)
            now = time.monotonic()
            since = {group: since.get(group, now) for group in self.fleet.stranded()}
            for group, began in since.items():
                if now - began >= STRANDED_SECONDS and group in self._calls:
                    self._calls[group].end(self._lack_of(group))

    def _lack_of(self, group: SequenceGroup) -> NoSuchWorker:
        """Why no worker takes a request."""
        limits, adapter = [each.limits for each in self.fleet.schedulers], group.request.adapter
        seeing = [each for each in limits if each.images and each.has_room_for_images(group.request)]
        if group.request.images and not seeing:
            return NoSuchWorker("no worker here takes these images")
        if any(each.goes_on(*group.needs) for each in limits):
            return NoSuchWorker(f"no worker here holds the {group.limit} tokens that this answer may come to")
        if not any(each.has(adapter) for each in limits):
            return NoSuchWorker(f"no worker here has the adapter '{adapter[:200]}'")
        return NoSuchWorker(
            "no worker here goes on with this answer as it was begun: "
            "they have other weights, number formats or kernels"
        )

    @property
    def stalled(self) -> int:
        """Number of workers that hang."""
        return sum(link.progress.stalled for link in self.links.values())

    async def _watch_progress(self) -> None:
        """For ever, look whether workers get on."""
        announced = 0
        while True:
            await asyncio.sleep(progress.LOOK_SECONDS)
            for link in self.links.values():
                link.progress.look(link.scheduler.in_flight > 0)
            if self.stalled != announced:
                announced = self.stalled
                if announced:
                    log.warning("%d of %d workers do not get on with a step", announced, len(self.links))
                self._announce(len(self.links), self.fleet.max_length)

    async def _serve(self, call: Any, ready: WorkerReady, limits: WorkerLimits) -> None:
        """Serve one worker until it is lost; then its requests go on elsewhere."""
        with self._guard:
            scheduler, outcome = self.fleet.add_worker(limits)
            if isinstance(scheduler, RecordedScheduler):
                scheduler.tape.worker = ready
            link = WorkerLink(call, scheduler, self._settings.plan_depth, self._guard, self.measures)
            self.links[scheduler] = link
            self._deliver(outcome, {})
            self._wake()
        log.info("a worker joined: %d blocks of %d tokens", limits.num_blocks, limits.block_size)
        drafter = DRAFTERS.get(source := self._settings.speculation)
        if drafter is not None and drafter.on_worker and not limits.can_draft:
            needed = "QUIRE_DRAFT_MODEL" if source == "draft" else "QUIRE_SPECULATION=mtp of its own"
            log.warning("QUIRE_SPECULATION=%s: the worker makes no drafts without %s", source, needed)
        self._announce(len(self.links), self.fleet.max_length)
        try:
            await link.run(lambda message: self._on_result(scheduler, message))
        except (grpc.aio.AioRpcError, WorkerFault) as error:
            loss, reason = _loss(error), _reason(error)
        with self._guard:
            del self.links[scheduler]
            self._deliver(self.fleet.remove_worker(scheduler, loss, reason), {})
            self._wake()
        self.measures.workers_lost.add()
        log.warning("a worker was lost: %s", reason)
        self._announce(len(self.links), self.fleet.max_length)
        if loss is not Loss.OUTSIDE:
            await asyncio.to_thread(self._save, scheduler, f"a worker was lost: {reason}")

    def _on_result(self, scheduler: Scheduler, message: StepResult) -> None:
        """Take in a result and deliver what it means. Raises `WorkerFault`."""
        try:
            result, logprobs = result_from(message)
            scheduler.check(result)
        except WorkerFault:
            raise
        except Exception as error:  # nothing has changed yet, so whatever it is concerns this worker alone
            raise WorkerFault(f"step {message.step}: its result cannot be checked: {error!r}") from error
        with self._guard:
            outcome = scheduler.settle(result)
            moves = self.fleet.isolates
            self.fleet.settle(scheduler, outcome)
            if self._admission.due(now := time.monotonic()):
                self._admission.note(self.fleet.admitted_tokens, now)
            self._deliver(outcome, logprobs, scheduler.limits)
            if moves:  # requests may have come to other workers; its own link goes on by itself
                self._wake()

    def _deliver(self, outcome: Outcome, logprobs: Logprobs, limits: WorkerLimits | None = None) -> None:
        """Give every call its gains in one response."""
        for group, scores in outcome.scored:
            self._put(group, GenerateResponse(prompt=cast(PromptScores, scores.values)), limits)
        by_group: dict[SequenceGroup, list[Gain]] = {}
        for gain in outcome.gains:
            by_group.setdefault(gain.group, []).append(gain)
        for group, gains in by_group.items():
            response = response_to(gains, logprobs)
            if group.predicted or group.predicted_rejected:
                told = PredictedTokens(accepted=group.predicted, rejected=group.predicted_rejected)
                response.predicted.CopyFrom(told)
                group.predicted = group.predicted_rejected = 0
            self._put(group, response, limits)
            if not group.unfinished:
                self._calls[group].end()
        for group, embedding in outcome.embedded:
            shortened = first_dimensions(embedding, group.request.dimensions)
            self._calls[group].add(EmbedTokensResponse(embedding=shortened))
            self._calls[group].end()
        for group, error in outcome.failed:
            self._calls[group].end(error)

    def _put(self, group: SequenceGroup, response: GenerateResponse, limits: WorkerLimits | None) -> None:
        """Give a call a response. The first one says what the answer comes from.

        `limits`: of the worker that has computed it; None: none has.
        """
        call = self._calls[group]
        if not call.begun:
            response.cached_tokens = group.cached_tokens or 0
            response.fingerprint = (
                limits.fingerprint_of(group.request.adapter) if limits else group.fingerprint
            )
            self._times[group].first_token()
        call.add(response)

    def _links_for(self, group: SequenceGroup) -> list[WorkerLink]:
        """The workers that may have something to plan once the request comes, or ends: to be asked before it
        ends. A worker that is set aside for suspects may then give requests to others."""
        home = self.fleet.home(group)
        if self.fleet.isolates:
            return list(self.links.values())
        return [] if home is None else [self.links[home]]

    def _wake(self, links: Iterable[WorkerLink] | None = None) -> None:
        """Let these workers plan again; None: all."""
        for link in self.links.values() if links is None else links:
            link.wake()


async def _ready(call: Any) -> WorkerReady:
    """Wait until a worker takes the call; its first event. Raises `WorkerFault`, `grpc.aio.AioRpcError`."""
    event = await call.read()
    if event is grpc.aio.EOF or event.WhichOneof("event") != "ready":
        raise WorkerFault("its first event is not `ready`")
    return cast(WorkerReady, event.ready)


def _goes_on(group: SequenceGroup, offer: Offer) -> bool:
    """Whether a request goes on with the workers of that offer. It does not tell how many beams they hold."""
    adapter, fingerprint, images = group.needs
    return (
        group.request.beams is None
        and group.needs_length <= offer.get("max_model_len", 0)
        and (not adapter or adapter in offer.get("adapters", ()))
        and (not fingerprint or fingerprint in offer.get("fingerprints", ()))
        and (not images or offer.get("images", False))
    )


def _loss(error: Exception) -> Loss:
    if not isinstance(error, grpc.aio.AioRpcError):
        return Loss.DEATH
    if from_outside(error):
        return Loss.OUTSIDE
    raised = any(key == RAISED for key, _ in error.trailing_metadata() or ())
    return Loss.RAISED if raised else Loss.DEATH


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) if isinstance(error, WorkerFault) else repr(error)
