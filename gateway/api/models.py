"""GET /v1/models, for clients of OpenAI's API and of Anthropic's: its objects have the fields of both."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter

from gateway.api.answer_schema import ModelList, ModelObject
from gateway.errors import NotFound, Unauthorized
from gateway.http.openapi import getting
from gateway.upstream.catalog import Catalog, Model


def router(catalog: Catalog) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/models", response_model=None, openapi_extra=getting(ModelList, Unauthorized))
    async def list_models() -> dict[str, Any]:
        """The models that are available, also under their aliases."""
        data = []
        for model in await catalog.models():
            if not model.missing:
                data += [_object(model, name) for name in (model.name, *catalog.aliases_of(model.name))]
        names = [one["id"] for one in data] or [None]
        pages = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
        return {"object": "list", "data": data, **pages}

    @routes.get(
        "/v1/models/{name:path}",
        response_model=None,
        openapi_extra=getting(ModelObject, Unauthorized, NotFound),
    )
    async def retrieve_model(name: str) -> dict[str, Any]:
        """One model."""
        return _object(await catalog.find(name), name)

    return routes


def _object(model: Model, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "root": model.name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": model.created,
        "created_at": f"{datetime.fromtimestamp(model.created, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "owned_by": "quire",
        "max_model_len": model.max_model_len,
        "max_input_tokens": model.max_model_len,
        "max_tokens": model.max_model_len,
        "lifecycle": "active",
        "defaults": model.defaults,
        "num_labels": model.num_labels,
        "generates": model.generates,
    }
