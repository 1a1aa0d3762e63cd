"""The gateway's HTTP application."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from gateway import page
from gateway.api import chat, completions, embeddings, health, models
from gateway.api.schema import ChatBody, CompletionBody, EmbeddingBody
from gateway.errors import BadRequest, GatewayError, NotFound, ServerFault, WrongMethod
from gateway.http.connection import Disconnected
from gateway.http.guard import Guard
from gateway.http.openapi import add_schemas
from gateway.http.protocol import HeadAsGet
from gateway.http.tracing import RequestTracing, record
from gateway.upstream.backend import Backend
from gateway.upstream.catalog import Catalog
from gateway.upstream.generation import Generator

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that has left. It is never sent."""

logger = logging.getLogger(__name__)


def create_app(backend: Backend, keys: Mapping[str, str] | None = None) -> FastAPI:
    """The application over `backend`. The process stops it through `app.state.generator`.

    `keys`: tenant by API key. Without any, requests need no key.
    """
    catalog = Catalog(backend)
    generator = Generator(backend, catalog)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        watch = asyncio.ensure_future(generator.watch())
        yield
        watch.cancel()

    app = FastAPI(
        title="Quire",
        version="0.1.0",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # `RequestTracing` makes the spans
    )
    app.state.generator = generator
    if keys:
        app.add_middleware(Guard, tenants=keys)
    app.add_middleware(HeadAsGet)
    app.add_middleware(RequestTracing)  # outside the guard: requests that it refuses get an id, too
    for router in (
        page.router(),
        health.router(catalog),
        models.router(catalog),
        completions.router(generator),
        chat.router(generator),
        embeddings.router(generator),
    ):
        app.include_router(router)
    app.add_exception_handler(GatewayError, _gateway_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Disconnected, _client_left)
    app.add_exception_handler(Exception, _server_fault)
    add_schemas(app, CompletionBody, ChatBody, EmbeddingBody)
    return app


async def _gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    if request.method == "POST":
        record(error)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    """A request that the router refuses: an unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    place = f"{request.method} {request.url.path[:200]}"
    refusal: GatewayError
    if error.status_code == 404:
        refusal = NotFound(f"Invalid URL ({place}).", code="unknown_url")
    elif error.status_code == 405:
        refusal = WrongMethod(f"Method not allowed ({place}).")
    else:
        refusal = BadRequest(str(error.detail))
    response = await _gateway_error(request, refusal)
    response.headers.update(error.headers or {})
    return response


async def _client_left(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _server_fault(request: Request, _: Exception) -> Response:
    """An unexpected exception, which the server logs. No middleware sees this response and adds the id."""
    response = ServerFault("The server failed to process the request.").response()
    response.headers["X-Request-Id"] = request.state.request_id
    return response
