"""KServe's Open Inference Protocol, version 2, over HTTP: /v2, its health, its models and their inference.

A model takes a tensor of texts and gives one of texts that go on from them, as /v1/completions does.
"""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import compact
from gateway.api.common.body import read_body
from gateway.api.kserve.schema import (
    InferAnswer,
    InferBody,
    KserveError,
    KserveLive,
    KserveModel,
    KserveModelReady,
    KserveReady,
    KserveServer,
)
from gateway.api.openai.completions import CompletionAnswer
from gateway.api.openai.completions_schema import CompletionBody
from gateway.api.openai.respond import respond
from gateway.api.openai.translate import completion_requests
from gateway.api.system.health import readiness
from gateway.errors import NotFound, Unauthorized, Unavailable
from gateway.http.draining import Drain
from gateway.http.openapi import getting, posting
from gateway.upstream.catalog import Catalog
from gateway.upstream.generator import Generator

INPUT, OUTPUT = "text_input", "text_output"


def router(catalog: Catalog, drain: Drain, generator: Generator, version: str) -> APIRouter:
    routes = APIRouter()
    _add_health(routes, catalog, drain, version)
    _add_models(routes, catalog, generator)
    return routes


def _add_health(routes: APIRouter, catalog: Catalog, drain: Drain, version: str) -> None:
    @routes.get("/v2", response_model=None, openapi_extra=getting(KserveServer))
    async def kserve_server() -> dict[str, Any]:
        """What runs here, in the shape of KServe's API."""
        return {"name": "quire", "version": version, "extensions": []}

    @routes.get("/v2/health/live", response_model=None, openapi_extra=getting(KserveLive, error=KserveError))
    async def kserve_live() -> dict[str, bool]:
        """The process runs."""
        return {"live": True}

    @routes.get(
        "/v2/health/ready",
        response_model=None,
        openapi_extra=getting(KserveReady, unready=True, error=KserveError),
    )
    async def kserve_ready(response: Response) -> dict[str, bool]:
        """Status 200 if a model is available and gets on; otherwise, and while it stops, 503."""
        ready = (await readiness(catalog, drain))["status"] == "ready"
        response.status_code = 200 if ready else Unavailable.status
        return {"ready": ready}


def _add_models(routes: APIRouter, catalog: Catalog, generator: Generator) -> None:
    # A name may have slashes, so the longer paths come first.
    @routes.get(
        "/v2/models/{name:path}/ready",
        response_model=None,
        openapi_extra=getting(KserveModelReady, Unauthorized, NotFound, unready=True, error=KserveError),
    )
    async def kserve_model_ready(name: str, response: Response) -> dict[str, Any]:
        """Status 200 if this model is available and gets on; otherwise 503."""
        model = await catalog.find(name)
        ready = not (model.missing or model.stalled)
        response.status_code = 200 if ready else Unavailable.status
        return {"name": name, "ready": ready}

    @routes.get(
        "/v2/models/{name:path}",
        response_model=None,
        openapi_extra=getting(KserveModel, Unauthorized, NotFound, error=KserveError),
    )
    async def kserve_model(name: str) -> dict[str, Any]:
        """One model, in the shape of KServe's API."""
        await catalog.find(name)
        tensors = [{"name": name, "datatype": "BYTES", "shape": [-1]} for name in (INPUT, OUTPUT)]
        about = {"name": name, "versions": [], "platform": "quire"}
        return {**about, "inputs": tensors[:1], "outputs": tensors[1:]}

    @routes.post(
        "/v2/models/{name:path}/infer", openapi_extra=posting(InferBody, InferAnswer, error=KserveError)
    )
    async def kserve_infer(name: str, request: Request) -> Response:
        """Continue the texts of a tensor, in the shape of KServe's API."""
        asked = await read_body(request, InferBody)
        kind = partial(Inferred, asked)
        return await respond(request, generator, asked.completion(name), completion_requests, kind)


class Inferred(CompletionAnswer):
    """An answer in the shape of KServe's API. It is never streamed."""

    def __init__(self, asked: InferBody, body: CompletionBody, request_id: str, prompts: int) -> None:
        super().__init__(body, request_id, prompts)
        self._shape = asked.inputs[0].shape
        self.id = asked.id or request_id

    def body(self) -> str:
        texts = ["".join(choice.text) for choice in self._choices]
        output = {"name": OUTPUT, "datatype": "BYTES", "shape": self._shape, "data": texts}
        return compact({"model_name": self.request.model, "id": self.id, "outputs": [output]})
