"""The gateway's HTTP application."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from gateway import docs_page, page
from gateway.api.anthropic import messages
from gateway.api.anthropic.answer_schema import MESSAGES
from gateway.api.anthropic.schema import CountBody, MessagesBody
from gateway.api.anthropic.volatile import Volatile
from gateway.api.batches import batches, files
from gateway.api.batches.schema import FILES, BatchBody, UploadBody
from gateway.api.infill import endpoints as infill
from gateway.api.infill.schema import FimBody
from gateway.api.kserve import endpoints as kserve
from gateway.api.kserve.schema import KSERVE, InferBody
from gateway.api.llama_cpp import endpoints as llama_cpp
from gateway.api.llama_cpp.answer_schema import LLAMA_CPP
from gateway.api.llama_cpp.schema import InfillBody, LlamaCompletionBody
from gateway.api.ollama import endpoints as ollama
from gateway.api.ollama.answer_schema import OLLAMA
from gateway.api.ollama.schema import (
    EmbedBody,
    OllamaChatBody,
    OllamaGenerateBody,
    PromptEmbedBody,
    ShowBody,
)
from gateway.api.openai import chat, completions, tokenize
from gateway.api.openai.answer_schema import ANSWERS
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.completions_schema import CompletionBody
from gateway.api.openai.token_schema import DetokenizeBody, TokenizeBody
from gateway.api.pooling import classify, embeddings, pooling, rank, texts
from gateway.api.pooling.answer_schema import POOLING
from gateway.api.pooling.classify_schema import ClassifyBody
from gateway.api.pooling.embeddings_schema import EmbeddingBody, PoolingBody
from gateway.api.pooling.rank_schema import RerankBody, ScoreBody, TextsBody
from gateway.api.pooling.texts_schema import EmbedTextsBody, TextsError
from gateway.api.responses import (
    conversations,
)
from gateway.api.responses import (
    endpoints as responses,
)
from gateway.api.responses import (
    stored as stored_responses,
)
from gateway.api.responses.answer_schema import RESPONSES
from gateway.api.responses.conversations_schema import CONVERSATIONS
from gateway.api.responses.schema import ResponsesBody
from gateway.api.system import health, inside, models, stream
from gateway.api.system import metrics as metrics_page
from gateway.api.system.health_answer_schema import HEALTH
from gateway.api.system.models_answer_schema import MODELS
from gateway.errors import BadRequest, GatewayError, NotFound, ServerFault, WrongMethod
from gateway.http.body_memory import BodyMemory, HoldsBodies
from gateway.http.claims import Claims
from gateway.http.connection import Disconnected
from gateway.http.draining import Drain, Draining
from gateway.http.error_shape import refusal
from gateway.http.guard import Guard
from gateway.http.gzipped import GzipAnswers
from gateway.http.idempotent import Idempotent
from gateway.http.key_ring import KeyRing
from gateway.http.meter import Meter
from gateway.http.openapi import Described
from gateway.http.origin import Access, OriginGuard, cross_origin
from gateway.http.own_requests import OwnRequests
from gateway.http.paths import UsualForm, meant_by, methods_at, options_of
from gateway.http.routes import DirectRoutes
from gateway.http.starts import BeginsInTurns, Starts
from gateway.http.tracing import RequestIds, RequestSpans, record
from gateway.jobs.jobs import Jobs
from gateway.upstream.backend import Backend
from gateway.upstream.batch_store import BatchStore
from gateway.upstream.catalog import Catalog
from gateway.upstream.fetched_images import ImageFetcher
from gateway.upstream.generator import Generator
from gateway.upstream.image_hosts import ImageHosts
from gateway.upstream.inside import Inside
from gateway.upstream.job_queue import JobQueue
from gateway.upstream.measures import ignored_fields
from gateway.upstream.response_store import ResponseStore
from ops.runtime.image_store import ImageStore
from ops.runtime.limits import Limits
from ops.runtime.metrics_page import Read

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that has left. It is never sent."""

DESCRIBED: tuple[type[BaseModel], ...] = (
    *(CompletionBody, ChatBody, EmbeddingBody, PoolingBody, TokenizeBody, DetokenizeBody),
    *(RerankBody, TextsBody, ScoreBody, ClassifyBody, EmbedTextsBody, TextsError, UploadBody, BatchBody),
    *(MessagesBody, CountBody, ResponsesBody, OllamaChatBody, OllamaGenerateBody),
    *(EmbedBody, PromptEmbedBody, ShowBody, InferBody, FimBody, InfillBody, LlamaCompletionBody),
    *ANSWERS,
    *HEALTH,
    *MODELS,
    *POOLING,
    *LLAMA_CPP,
    *MESSAGES,
    *RESPONSES,
    *OLLAMA,
    *KSERVE,
    *FILES,
    *CONVERSATIONS,
)
"""What requests and answers may have."""

_LOOPBACK_ONLY = Access()

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stores:
    """What the gateway keeps outside its process."""

    meter: Meter
    """Counts requests and tokens of every caller."""
    metrics: Read
    """Reads the metrics of all processes."""
    responses: ResponseStore | None
    """Answers of `/v1/responses`; None: they are not kept."""
    background: JobQueue
    """Queue of responses that are made in the background. Without `responses` there are none."""
    batches: BatchStore
    """Batches and their files."""
    batch_queue: JobQueue
    """Queue of batches that have not ended."""
    images: ImageStore
    """Images of requests under way."""
    claims: Claims | None
    """Answers to requests with an `Idempotency-Key`; None: the header changes nothing."""


@dataclass(frozen=True)
class Options:
    """How the gateway answers."""

    access: Access = _LOOPBACK_ONLY
    """Hosts and web pages that may ask; without any, those of this machine."""
    answer_timeout: float | None = None
    """Seconds that an answer may take whose request does not say."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names of models by other names for them."""
    strict_fields: bool = False
    """Requests with fields that nobody knows are refused."""
    trace_url: str = ""
    """Where people see a trace, with `{id}` in place of its id; empty: nowhere."""
    file_bytes: int = 64 * 2**20
    """Bytes of a file that is uploaded."""
    batch_lines_at_once: int = 16
    """Lines of a batch that a gateway asks at once."""
    image_hosts: ImageHosts | None = None
    """Hosts from which images are fetched; None: no image is."""
    volatile_header: Volatile = "omit"
    """What becomes of the line of a system prompt that each request has anew."""


def create_app(
    backend: Backend,
    keys: KeyRing,
    limits: Limits,
    stores: Stores,
    options: Options,
) -> FastAPI:
    """The application over `backend`. The process runs `generator.watch` and `jobs.run` of its state, and
    stops it through `drain`, `jobs` and `generator`.

    `limits`: of every caller whose key gives no others.
    """
    catalog = Catalog(backend, aliases=options.aliases)
    generator = Generator(backend, catalog, options.answer_timeout, stores.images)

    app = Described(
        DESCRIBED,
        title="Quire",
        version="0.1.0",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # `UsualForm` takes them off
        telemetry={"tracing": False, "metrics": False, "logs": False},  # `RequestSpans` makes the spans
    )
    app.state.catalog, app.state.generator = catalog, generator
    app.state.jobs = jobs = Jobs(OwnRequests(app))
    background = jobs.background(stores.responses, stores.background)
    batching = jobs.batches(stores.batches, stores.batch_queue, options.batch_lines_at_once)
    app.state.strict_fields = options.strict_fields
    app.state.ignored_fields = ignored_fields()
    app.state.inside = Inside(backend)
    app.state.drain = drain = Drain()
    app.state.bodies = BodyMemory()
    app.state.image_fetcher = ImageFetcher(options.image_hosts) if options.image_hosts else None
    _add_middleware(app, keys, limits, stores, options.access)
    routers = [
        page.router(),
        docs_page.router(app.openapi),
        health.router(catalog, drain, generator, app.version),
        metrics_page.router(stores.metrics),
        models.router(catalog),
        completions.router(generator),
        chat.router(generator),
        infill.router(generator),
        llama_cpp.router(generator, catalog),
        messages.router(generator, options.volatile_header),
        responses.router(generator, stores.responses, background),
        stored_responses.router(stores.responses, background),
        ollama.router(generator, catalog),
        kserve.router(catalog, drain, generator, app.version),
        embeddings.router(generator),
        pooling.router(generator),
        rank.router(generator, catalog),
        classify.router(generator),
        texts.router(generator, catalog, app.version),
        tokenize.router(generator, catalog),
        inside.router(generator, app.state.inside, options.trace_url),
        stream.router(keys, app.state.bodies),
    ]
    if stores.responses is not None:
        routers.append(conversations.router(stores.responses.conversations))
    routers += [files.router(stores.batches.files, options.file_bytes), batches.router(batching)]
    app.state.routes = [route for router in routers for route in router.routes]
    app.router.routes.append(DirectRoutes(app.state.routes))
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(GatewayError, _gateway_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Disconnected, _client_left)
    app.add_exception_handler(Exception, partial(_server_fault, access=options.access))
    return app


def _add_middleware(app: FastAPI, keys: KeyRing, limits: Limits, stores: Stores, access: Access) -> None:
    """From the inside out: requests that any of these refuses get an id, too, but no span."""
    app.add_middleware(RequestSpans)
    if stores.claims is not None:
        app.add_middleware(Idempotent, claims=stores.claims)
    app.add_middleware(GzipAnswers)
    app.add_middleware(HoldsBodies, memory=app.state.bodies)
    app.add_middleware(BeginsInTurns, starts=Starts())
    app.add_middleware(Guard, keys=keys, limits=limits, meter=stores.meter)
    app.add_middleware(UsualForm)
    app.add_middleware(Draining, drain=app.state.drain)
    if access.origins:
        app.add_middleware(cross_origin, access=access)
    app.add_middleware(OriginGuard, access=access, keys=keys)
    app.add_middleware(RequestIds)


async def _gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    if request.method == "POST":
        record(error)
    # The state would hold the frames that hold the state: the body would stay until the garbage is collected.
    error.__traceback__ = error.__context__ = None
    request.scope["state"]["error"] = error
    return refusal(error, request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    """A request that the router refuses: an unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    place = f"{request.method} {request.url.path[:200]}"
    refused: GatewayError
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = methods_at(request.app.state.routes, request.scope)
        if request.method == "OPTIONS":
            return options_of(headers["Allow"])
    if error.status_code == 404 and request.method == "OPTIONS" and request.scope["path"].strip("/") == "*":
        return options_of("DELETE, GET, HEAD, OPTIONS, POST")  # of the server as a whole
    if error.status_code == 404:
        meant = meant_by(request.app.state.routes, request.scope)
        hint = f" Is {meant[:200]} meant?" if meant else ""
        refused = NotFound(f"Invalid URL ({place}).{hint}", code="unknown_url")
    elif error.status_code == 405:
        refused = WrongMethod(f"Method not allowed ({place}).")
    else:
        refused = BadRequest(str(error.detail))
    response = await _gateway_error(request, refused)
    response.headers.update(headers)
    return response


async def _client_left(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _server_fault(request: Request, _: Exception, access: Access) -> Response:
    """An unexpected exception, which the server logs, and after which it closes the connection.

    No middleware sees this response and adds its headers.
    """
    request_id: str = request.state.request_id
    logger.error("request %s: an unexpected error; what it was stands below", request_id)
    response = refusal(ServerFault(request_id), request.scope)
    response.headers["X-Request-Id"] = request_id
    response.headers["Connection"] = "close"
    if not access.origins:
        return response
    return cast(Response, cross_origin(response, access))  # all that is done with either is to call it
