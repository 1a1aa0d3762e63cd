"""The servicer of `quire.Scheduler`: translates between gRPC calls and the engine's calls."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import grpc
from opentelemetry import trace
from opentelemetry.trace import Span

from ops.runtime.light_spans import written
from ops.runtime.telemetry import served
from proto.rpc.call import Status
from proto.rpc.resume import LOST, OUTSIDE
from proto.sampling import MAX_SEQUENCES
from proto.scheduler_pb2 import EmbedTokensRequest, EmbedTokensResponse, GenerateRequest, Start
from proto.scheduler_pb2_grpc import SchedulerServicer
from scheduler_svc.call import Call
from scheduler_svc.core.errors import (
    ContextExceeded,
    HandedOver,
    NoSuchWorker,
    RequestPoisoned,
    RequestRefused,
    SchedulerError,
    TooMuchWaits,
)
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.engine import Engine
from scheduler_svc.intake import embedding_from, request_from
from scheduler_svc.state_spans import RequestStates, states_of

tracer = trace.get_tracer("quire.scheduler")

_CODES = {
    ContextExceeded: grpc.StatusCode.OUT_OF_RANGE,
    RequestRefused: grpc.StatusCode.INVALID_ARGUMENT,
    TooMuchWaits: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HandedOver: grpc.StatusCode.UNAVAILABLE,
    NoSuchWorker: grpc.StatusCode.FAILED_PRECONDITION,
    RequestPoisoned: grpc.StatusCode.ABORTED,
}
"""The status of each error, the more special first. Of others: INTERNAL."""


class SchedulerService(SchedulerServicer):
    """See scheduler.proto."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def Generate(self, requests: AsyncIterator[GenerateRequest], context: Any) -> None:
        async with served(tracer, "scheduler.generate", context, _status_of) as span:
            await self._generate(requests, context, span)

    async def Embed(self, asked: EmbedTokensRequest, context: Any) -> EmbedTokensResponse:
        response = EmbedTokensResponse()
        async with served(tracer, "scheduler.embed", context, _status_of) as span:
            request = embedding_from(asked, written(span), _deadline(context))
            with self._opened(request, context, span) as (_, call, _):
                found = await call.get()
                if call.error is not None:
                    raise call.error
                assert isinstance(found, EmbedTokensResponse)
                response = found
        return response

    async def _generate(self, requests: AsyncIterator[GenerateRequest], context: Any, span: Span) -> None:
        incoming_messages = aiter(requests)
        first = await anext(incoming_messages, None)
        if first is None or first.WhichOneof("kind") != "start":
            raise RequestRefused("start", "the first message of a call must carry start")
        await _complete(first.start, incoming_messages)
        request = request_from(first.start, written(span), _deadline(context))
        with self._opened(request, context, span) as (group, call, states):
            listener = asyncio.ensure_future(self._listen(incoming_messages, group))
            listener.add_done_callback(lambda done: _ended(done, call))
            try:
                while (response := await call.get()) is not None:
                    if states is not None:
                        states.tokens()
                    await context.write(response)
                if call.error is not None:
                    raise call.error
            finally:
                listener.cancel()

    @contextmanager
    def _opened(
        self, request: Request, context: Any, span: Span
    ) -> Iterator[tuple[SequenceGroup, Call, RequestStates | None]]:
        """Open the engine's call, for as long as the gRPC call lives."""
        states = states_of(span)
        if span.is_recording():
            span.set_attribute("quire.requests_before", self._engine.unfinished)
        group, call = self._engine.open(request, states)
        # The gRPC call may end while this coroutine waits in a write: then the callback frees what it holds.
        context.add_done_callback(lambda *_: self._engine.close(group))
        try:
            yield group, call, states
        finally:
            self._engine.close(group)
            span.set_attributes(_facts(group))
            if states is not None:
                states.close()
            group.sequences.clear()  # they refer to the group: only a collection of garbage would find them

    async def _listen(self, messages: AsyncIterator[GenerateRequest], group: SequenceGroup) -> None:
        """Take the caller's messages after `start`. Raises `RequestRefused`."""
        async for message in messages:
            if message.WhichOneof("kind") != "end_sequence" or message.end_sequence >= group.request.n:
                raise RequestRefused("end_sequence", "names no sequence of this request")
            if group.request.beams is None:  # the answers of a beam search come when all of it has ended
                self._engine.end_sequence(group, message.end_sequence)


async def _complete(start: Start, messages: AsyncIterator[GenerateRequest]) -> None:
    """Add to `start.resumed` what follows in messages of its own. Raises `RequestRefused`."""
    if start.more_resumed > MAX_SEQUENCES:
        raise RequestRefused("more_resumed", f"more_resumed must be at most {MAX_SEQUENCES}")
    for _ in range(start.more_resumed):
        message = await anext(messages, None)
        if message is None or message.WhichOneof("kind") != "resumed":
            raise RequestRefused("resumed", "fewer messages with it follow than start.more_resumed says")
        start.resumed.append(message.resumed)


def _deadline(context: Any) -> float:
    """The call's deadline in seconds on the monotonic clock; infinite without one."""
    remaining: float | None = context.time_remaining()
    return inf if remaining is None else time.monotonic() + remaining


def _ended(listener: "asyncio.Task[None]", call: Call) -> None:
    """Nobody takes the caller's messages any more. Without their end in order the call ends, too."""
    if not listener.cancelled() and (error := listener.exception()) is not None:
        call.end(error if isinstance(error, Exception) else RuntimeError(repr(error)))


def _facts(group: SequenceGroup) -> dict[str, str | int]:
    request = group.request
    computed = sum(sequence.output_tokens for sequence in group.sequences)
    adapter = {"quire.adapter": request.adapter} if request.adapter else {}
    images = {"quire.images": len(request.images)} if request.images else {}
    return {
        **adapter,
        **images,
        "quire.request_id": request.request_id,
        "quire.tenant": request.tenant,
        "quire.n": request.n,
        "quire.prompt_tokens": len(request.prompt),
        "quire.cached_tokens": group.cached_tokens or 0,
        "quire.output_tokens": computed,
        "quire.drafts": group.drafts,
        "quire.drafts_held": group.drafts_held,
        "quire.resumed_tokens": sum(len(so_far.tokens) for so_far in request.resumed),
    }


def _status_of(error: Exception) -> Status | None:
    """The status with which a call ends for `error`; None for an unexpected error."""
    if not isinstance(error, SchedulerError):
        return None
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    return Status(code, str(error), _trailing(error))


def _trailing(error: SchedulerError) -> tuple[tuple[str, str], ...]:
    if isinstance(error, TooMuchWaits):
        return (("quire-retry-after", str(error.retry_after)),)
    if isinstance(error, HandedOver):
        return ((LOST, "worker"),) if error.suspect else ((OUTSIDE, "stopped"),)
    return (("quire-param", error.param),) if isinstance(error, RequestRefused) else ()
