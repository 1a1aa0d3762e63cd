"""The tokenizer's calls: it serves the gateway, and calls the scheduler."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from opentelemetry import trace
from opentelemetry.trace import Span

from ops.model_directory.hub import fetched
from ops.runtime.drain import drain
from ops.runtime.image_store import ImageGone, ImageStore
from ops.runtime.telemetry import Metadata, Waits, calling, carried, served, within
from proto.parts import parts_of
from proto.rpc import BusAway, Node, Resumption
from proto.rpc.call import TOO_LARGE, Status
from proto.rpc.line import Line
from proto.rpc.outbox import answered
from proto.scheduler_pb2 import EmbedTokensRequest, EmbedTokensResponse, GenerateRequest
from proto.scheduler_pb2_grpc import SchedulerStub
from proto.tokenizer_pb2 import (
    EmbedRequest,
    EmbedResponse,
    TextRequest,
    TokenizeRequest,
    TokenizeResponse,
)
from proto.tokenizer_pb2_grpc import TokenizerServicer, add_TokenizerServicer_to_server
from tokenizer_svc.answers.generation import Generation
from tokenizer_svc.answers.tokenization import tokenized
from tokenizer_svc.errors import (
    InvalidRequestError,
    OtherTokenizerError,
    PanicError,
    SchedulerError,
    TooLongError,
)
from tokenizer_svc.formats.formats import Formats, said_in
from tokenizer_svc.grammars.call_rules import budget_of, call_rules
from tokenizer_svc.grammars.shared_verdicts import RedisVerdicts
from tokenizer_svc.grammars.trials import Grammars, param_of
from tokenizer_svc.model.classification import check_generates, classified
from tokenizer_svc.model.defaults import fill_in
from tokenizer_svc.model.fingerprint import fingerprint_of, tokenizer_part
from tokenizer_svc.model.images import ImageSizes
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.alternatives import bound_alternatives
from tokenizer_svc.requests.breakers import Breakers
from tokenizer_svc.requests.context import AnnouncedContext, ContextLength
from tokenizer_svc.requests.embedding import tokens_request
from tokenizer_svc.requests.prompt import Render, check, predicted_tokens, prompt_of
from tokenizer_svc.requests.rules import complete_rules
from tokenizer_svc.settings import TokenizerSettings
from tokenizer_svc.templates.renderer import Renderer
from tokenizer_svc.templates.tools_as_text import Spelling

_PASSED_ON = ("quire-param", "quire-retry-after", TOO_LARGE)
"""Trailing metadata of the scheduler's that the gateway reads."""

_GENERATE, _EMBED = "quire.Scheduler/Generate", "quire.Scheduler/Embed"

log = logging.getLogger(__name__)
tracer = trace.get_tracer(__name__)


async def serve(node: Node, settings: TokenizerSettings) -> None:
    """Serve the model's text until cancelled, and after that until `drain` returns.

    Raises `HubError`, or `ModelDirectoryError` if the model has no text.
    """
    directory = await asyncio.to_thread(fetched, settings.model, log.info, weights=False)
    image_tokens = settings.image_tokens
    model = await asyncio.to_thread(TextModel.load, directory, image_tokens)
    name = settings.served_name
    formats = Formats(model, settings.tool_format, settings.reasoning_format)
    async with _renderer(model, settings.client_templates, formats.spelling) as render:
        server = node.server(pool=name, capacity=settings.tokenizer_calls)
        context = AnnouncedContext(node.leases, name)
        names = formats.call_name, formats.thought_name
        own = await asyncio.to_thread(fingerprint_of, directory, image_tokens if model.images else 0, names)
        redis = Line(settings.redis_url)
        images = redis.another()
        sizes = ImageSizes(ImageStore(images, settings.stream_prefix))
        shared = RedisVerdicts(redis, settings.stream_prefix, node.seal)
        grammars = Grammars(directory, model.vocab_size, model.end_tokens, own, shared)
        scheduler = SchedulerStub(node.channel(pool=name))
        service = TokenizerService(
            model,
            scheduler,
            context=context,
            render=render,
            fingerprint=own,
            grammars=grammars,
            formats=formats,
            sizes=sizes,
        )
        add_TokenizerServicer_to_server(service, server)
        await server.start()
        capacity = settings.tokenizer_calls
        told = {**told_of(model, formats), "defaults": dict(model.defaults)}
        await node.update(model=name, capacity=capacity, fingerprint=own, **told)
        defaults = ", ".join(f"{key} {value}" for key, value in model.defaults.items())
        log.info("serving %s from %s; its sampling defaults: %s", name, settings.model, defaults or "none")
        try:
            await server.wait_for_termination()
        finally:
            await drain(node, server, settings.stop_seconds)
            await grammars.close()
            sizes.close()
            redis.close()
            images.close()


def told_of(model: TextModel, formats: Formats) -> dict[str, int]:
    """What the lease says that the model can do."""
    told: dict[str, int] = {
        "num_labels": 0 if model.classifier is None else len(model.classifier.labels),
        "bidirectional": model.bidirectional,
    }
    can = {
        "images": model.images is not None,
        "calls": formats.calls is not None,
        "thoughts": formats.thoughts is not None,
    }
    return told | {name: True for name, able in can.items() if able}


@asynccontextmanager
async def _renderer(
    model: TextModel, takes_templates: bool, spelling: Spelling | None
) -> AsyncIterator[Render | None]:
    """Renders the model's conversations; None if there is no chat template. Raises `ModelDirectoryError`.

    `takes_templates`: a conversation may bring one. `spelling`: see `ChatTemplate`.
    """
    source = model.template
    if source is None and takes_templates:
        source = "{{ raise_exception('this model has none: send chat_template') }}"
    if source is None:
        yield None
        return
    renderer = Renderer(
        source,
        model.named_tokens,
        tool_source=model.tool_template,
        takes_templates=takes_templates,
        spelling=spelling,
    )
    await renderer.start()
    try:
        yield renderer.render
    finally:
        await renderer.close()


class TokenizerService(TokenizerServicer):
    """Translates between text and tokens; what it decides is in `generation.py`."""

    def __init__(
        self,
        model: TextModel,
        scheduler: SchedulerStub,
        context: ContextLength,
        render: Render | None,
        fingerprint: str,
        grammars: Grammars,
        formats: Formats,
        sizes: ImageSizes,
    ) -> None:
        """`context`: gives the tokens of the model's longest sequence.

        `render`: renders conversations; None if the model has no chat template. `fingerprint`: see
        `fingerprint.py`. `grammars`: compiles grammars of answers. `formats`: how the model spells thoughts
        and calls. `sizes`: of images.
        """
        self._grammars = grammars
        self._fingerprint, self._formats = fingerprint, formats
        self._model, self._context, self._render = model, context, render
        self._scheduler, self._sizes = scheduler, sizes
        self._breakers = Breakers(model)

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
            asked = await tokens_request(self._model, request, self._context, self._render)
            response.tokens = len(asked.tokens) // 4
            span.set_attribute("quire.prompt_tokens", response.tokens)
            response.embedding = await self._embed(asked, span, context)
            if (classifier := self._model.classifier) is not None:
                response.embedding, response.label = classified(classifier, response.embedding, request.raw)
        return response

    async def Tokenize(self, request: TokenizeRequest, context: Any) -> TokenizeResponse:
        """See proto/tokenizer.proto."""
        response = TokenizeResponse()
        async with served(tracer, "tokenizer.tokenize", context, _status_of) as span:
            span.set_attribute("quire.request_id", request.request.request_id)
            response = await tokenized(self._model, request, self._context, self._render, self._sizes)
            span.set_attribute("quire.prompt_tokens", len(response.token_ids))
        return response

    async def _embed(self, asked: EmbedTokensRequest, span: Span, context: Any) -> bytes:
        """Ask a scheduler, and another one when it dies. Raises `grpc.aio.AioRpcError`."""
        resumption, attempt = Resumption(), 0
        while True:
            attempt += 1
            try:
                with calling(_EMBED, span, attempt) as attempted:
                    metadata = (*carried(attempted), *resumption.metadata())
                    timeout = context.time_remaining()
                    call = self._scheduler.Embed(
                        asked, metadata=metadata, timeout=timeout, wait_for_ready=True
                    )
                    try:
                        found: EmbedTokensResponse = await call
                        return found.embedding
                    finally:
                        call.cancel()
            except grpc.aio.AioRpcError as error:
                resumption.retry_or_raise(error)

    async def _generate(self, request: TextRequest, context: Any, span: Span) -> None:
        begun = request.resumed or request.scored_tokens
        if begun and tokenizer_part(request.fingerprint) not in ("", self._fingerprint):
            raise OtherTokenizerError
        check_generates(self._model.classifier, self._model.bidirectional)
        fill_in(request, self._model.defaults)
        check(self._model, request)
        request.sampling.ClearField("grammar")
        await complete_rules(self._model, request, self._breakers)
        with within("tokenizer.encode", span) as encoding:
            prompt = await prompt_of(self._model, request, self._context, self._render, self._sizes)
            tokens = prompt.tokens
            encoding.set_attribute("quire.prompt_tokens", len(tokens))
            if prompt.images:
                encoding.set_attribute("quire.images", len(prompt.images))
            predicted = await predicted_tokens(self._model, request)
        bound_alternatives(request, tokens, self._model.vocab_size)
        if request.HasField("shape") or request.HasField("thinking_budget"):
            with within("tokenizer.grammar", span):
                await self._constrain(request, tokens)
        span.set_attribute("quire.prompt_tokens", len(tokens))
        generation = Generation(
            self._model,
            request,
            tokens,
            self._formats,
            fingerprint=self._fingerprint,
            predicted=predicted,
            images=prompt.images,
        )
        waits = Waits()
        try:
            if (due := generation.resume()) is not None:
                await context.write(due)
            resumption, attempt = Resumption(), 0
            while not generation.finished:
                attempt += 1
                try:
                    with calling(_GENERATE, span, attempt) as attempted:
                        attempted.set_attribute("quire.resumed_tokens", generation.output_tokens)
                        await self._call(generation, carried(attempted), resumption, context, waits)
                    if not generation.finished:
                        raise SchedulerError("the scheduler ended the call before its sequences")
                except grpc.aio.AioRpcError as error:
                    if not generation.finished:
                        _raise_for_grammar(request, error)
                        resumption.retry_or_raise(error)
        finally:
            span.set_attribute("quire.output_tokens", generation.output_tokens)
            waits.note(span)

    async def _constrain(self, request: TextRequest, prompt: list[int]) -> None:
        """Give the request the grammar that its shape or its budget asks for, if any.

        Raises `InvalidRequestError`.
        """
        calls = before = None
        if request.shape.HasField("calls") or request.shape.HasField("or_calls"):
            calls = call_rules(request, self._formats, prompt)
            if calls is None and request.shape.HasField("calls"):
                request.ClearField("shape")
        if calls is None and request.HasField("chat"):
            said = said_in(request.chat)
            before = self._formats.before(prompt, budget_of(request), request.lenient_budget, said)
        if not request.HasField("shape") and (before is None or before.budget is None):
            return
        try:
            grammar = await self._grammars.grammar_of(request, calls, before)
        except InvalidRequestError:
            if request.HasField("shape") or not request.lenient_budget:
                raise
        else:
            request.sampling.grammar.CopyFrom(grammar)

    async def _call(
        self, generation: Generation, traced: Metadata, resumption: Resumption, context: Any, waits: Waits
    ) -> None:
        """One call of a scheduler, from what the generation has so far. Raises `grpc.aio.AioRpcError`."""
        metadata, timeout = (*traced, *resumption.metadata()), context.time_remaining()
        call = self._scheduler.Generate(metadata=metadata, timeout=timeout, wait_for_ready=True)
        try:
            for message in generation.opening():
                await _write(call, message)
            await answered()
            generation.prepare()  # while the scheduler computes
            async for response in call:
                waits.came()
                if generation.scores_prompt:
                    for scored in generation.take_prompt(response):
                        resumption.progressed()
                        for part in parts_of(scored):
                            await context.write(part)
                chunk, ended = generation.take(response)
                if chunk is not None:
                    resumption.progressed()
                    for part in parts_of(chunk):
                        await context.write(part)
                for index in ended:
                    await _write(call, GenerateRequest(end_sequence=index))
        finally:
            call.cancel()


def _raise_for_grammar(request: TextRequest, error: grpc.aio.AioRpcError) -> None:
    """Name the client's own field if the scheduler refuses a grammar. Raises `InvalidRequestError`."""
    if any(key == "quire-param" and value == "grammar" for key, value in error.trailing_metadata() or ()):
        raise InvalidRequestError(param_of(request), error.details() or "") from error


def _status_of(error: Exception) -> Status | None:
    """The status with which a call ends for `error`; None for an unexpected error."""
    if isinstance(error, InvalidRequestError):
        too_long = isinstance(error, TooLongError)
        code = grpc.StatusCode.OUT_OF_RANGE if too_long else grpc.StatusCode.INVALID_ARGUMENT
        return Status(code, str(error), (("quire-param", error.param),))
    if isinstance(error, OtherTokenizerError | ImageGone | BusAway):
        return Status(grpc.StatusCode.UNAVAILABLE, str(error))
    if isinstance(error, SchedulerError | PanicError):
        return Status(grpc.StatusCode.INTERNAL, str(error))
    if isinstance(error, grpc.aio.AioRpcError):
        return Status(error.code(), error.details() or "", _ours(error.trailing_metadata()))
    return None


async def _write(call: Any, message: GenerateRequest) -> None:
    # A call that has ended takes no more messages; reading it raises the reason why it ended.
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(message)


def _ours(metadata: Metadata | None) -> tuple[tuple[str, str | bytes], ...]:
    """The entries of a scheduler's trailing metadata that are part of the contract."""
    return tuple((key, value) for key, value in metadata or () if key in _PASSED_ON)
