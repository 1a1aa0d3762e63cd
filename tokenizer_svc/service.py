"""The tokenizer's calls: it serves the gateway, and calls the scheduler."""

import asyncio
import logging
from contextlib import suppress
from typing import Any

import grpc
from opentelemetry import trace
from opentelemetry.trace import Span

from ops.runtime.hub import fetched
from ops.runtime.telemetry import Metadata, outgoing, served
from proto.rpc import Node, Resumption
from proto.rpc.call import Status
from proto.scheduler_pb2 import EmbedTokensRequest, EmbedTokensResponse, GenerateRequest
from proto.scheduler_pb2_grpc import SchedulerStub
from proto.tokenizer_pb2 import EmbedRequest, EmbedResponse, TextRequest
from proto.tokenizer_pb2_grpc import TokenizerServicer, add_TokenizerServicer_to_server
from tokenizer_svc.defaults import fill_in
from tokenizer_svc.embedding import tokens_request
from tokenizer_svc.errors import InvalidRequestError, SchedulerError, TooLongError
from tokenizer_svc.generation import Generation
from tokenizer_svc.prompt import check, prompt_tokens
from tokenizer_svc.settings import TokenizerSettings
from tokenizer_svc.tokenizer import TextModel

GRACE = 5.0
"""Seconds that calls may go on once the process is asked to end; then callers call another replica."""

log = logging.getLogger(__name__)
tracer = trace.get_tracer(__name__)


async def serve(node: Node, settings: TokenizerSettings) -> None:
    """Serve the model's text until cancelled. Raises `HubError`, or `ModelDirectoryError` if it has none."""
    directory = await asyncio.to_thread(fetched, settings.model, log.info)
    model = await asyncio.to_thread(TextModel.load, directory)
    name = settings.served_name
    server = node.server(pool=name, capacity=settings.tokenizer_calls)
    service = TokenizerService(model, SchedulerStub(node.channel(pool=name)))
    add_TokenizerServicer_to_server(service, server)
    await server.start()
    await node.update(model=name, defaults=dict(model.defaults))
    defaults = ", ".join(f"{key} {value}" for key, value in model.defaults.items())
    log.info("serving %s from %s; its own sampling defaults: %s", name, settings.model, defaults or "none")
    try:
        await server.wait_for_termination()
    finally:
        await server.stop(GRACE)


class TokenizerService(TokenizerServicer):
    """Translates between text and tokens; what it decides is in `generation.py`."""

    def __init__(self, model: TextModel, scheduler: SchedulerStub) -> None:
        self._model = model
        self._scheduler = scheduler

    async def Generate(self, request: TextRequest, context: Any) -> None:
        """See proto/tokenizer.proto."""
        async with served(tracer, "tokenizer.generate", context, _status_of) as span:
            span.set_attribute("quire.request_id", request.request_id)
            await self._generate(request, context, span)

    async def Embed(self, request: EmbedRequest, context: Any) -> EmbedResponse:
        """See proto/tokenizer.proto."""
        response = EmbedResponse()
        async with served(tracer, "tokenizer.embed", context, _status_of) as span:
            span.set_attribute("quire.request_id", request.request_id)
            asked = await tokens_request(self._model, request)
            response.tokens = len(asked.tokens) // 4
            span.set_attribute("quire.prompt_tokens", response.tokens)
            response.embedding = await self._embed(asked, _carried(span), context)
        return response

    async def _embed(self, asked: EmbedTokensRequest, carried: Metadata, context: Any) -> bytes:
        """Ask a scheduler, and another one when it dies. Raises `grpc.aio.AioRpcError`."""
        resumption = Resumption()
        while True:
            call = self._scheduler.Embed(
                asked,
                metadata=(*carried, *resumption.metadata()),
                timeout=context.time_remaining(),
                wait_for_ready=True,
            )
            try:
                found: EmbedTokensResponse = await call
                return found.embedding
            except grpc.aio.AioRpcError as error:
                resumption.retry_or_raise(error)
            finally:
                call.cancel()

    async def _generate(self, request: TextRequest, context: Any, span: Span) -> None:
        fill_in(request, self._model.defaults)
        check(self._model, request)
        prompt = await prompt_tokens(self._model, request)
        span.set_attribute("quire.prompt_tokens", len(prompt))
        generation = Generation(self._model, request, prompt)
        carried = _carried(span)
        try:
            if (due := generation.resume()) is not None:
                await context.write(due)
            resumption = Resumption()
            while not generation.finished:
                try:
                    await self._call(generation, carried, resumption, context)
                    if not generation.finished:
                        raise SchedulerError("the scheduler ended the call before its sequences")
                except grpc.aio.AioRpcError as error:
                    if not generation.finished:
                        resumption.retry_or_raise(error)
        finally:
            span.set_attribute("quire.output_tokens", generation.output_tokens)

    async def _call(
        self, generation: Generation, carried: Metadata, resumption: Resumption, context: Any
    ) -> None:
        """One call of a scheduler, from what the generation has so far. Raises `grpc.aio.AioRpcError`."""
        metadata, timeout = (*carried, *resumption.metadata()), context.time_remaining()
        call = self._scheduler.Generate(metadata=metadata, timeout=timeout, wait_for_ready=True)
        try:
            await _write(call, GenerateRequest(start=generation.start()))
            async for response in call:
                chunk, ended = generation.take(response)
                if chunk is not None:
                    resumption.progressed()
                    await context.write(chunk)
                for index in ended:
                    await _write(call, GenerateRequest(end_sequence=index))
        finally:
            call.cancel()


def _status_of(error: Exception) -> Status | None:
    """The status with which a call ends for `error`; None for an unexpected error."""
    if isinstance(error, InvalidRequestError):
        too_long = isinstance(error, TooLongError)
        code = grpc.StatusCode.OUT_OF_RANGE if too_long else grpc.StatusCode.INVALID_ARGUMENT
        return Status(code, str(error), (("quire-param", error.param),))
    if isinstance(error, SchedulerError):
        return Status(grpc.StatusCode.INTERNAL, str(error))
    if isinstance(error, grpc.aio.AioRpcError):
        return Status(error.code(), error.details() or "", _ours(error.trailing_metadata()))
    return None


def _carried(span: Span) -> Metadata:
    """Metadata that carries the span's context to the scheduler; none if the call is not traced."""
    return outgoing(trace.set_span_in_context(span)) if span.get_span_context().is_valid else ()


async def _write(call: Any, message: GenerateRequest) -> None:
    # A call that has ended takes no more messages; reading it raises the reason why it ended.
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(message)


def _ours(metadata: Metadata | None) -> tuple[tuple[str, str | bytes], ...]:
    """The entries of a scheduler's trailing metadata that are part of the contract."""
    return tuple((key, value) for key, value in metadata or () if key in ("quire-param", "quire-retry-after"))
