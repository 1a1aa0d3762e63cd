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
        """The models that are available, also under their aliases, and their LoRA adapters."""
        data = []
        for model in await catalog.models():
            if not model.missing:
                aliases, adapters = catalog.aliases_of(model.name), catalog.adapters_of(model)
                for name in (model.name, *aliases, *adapters):
                    adapter = catalog.adapter_of(name)
                    if not adapter or adapter in model.adapters:
                        data.append(_object(model, name, adapter))
        ids = [one["id"] for one in data] or [None]
        pages = {"has_more": False, "first_id": ids[0], "last_id": ids[-1]}
        return {"object": "list", "data": data, **pages}

    @routes.get(
        "/v1/models/{name:path}",
        response_model=None,
        openapi_extra=getting(ModelObject, Unauthorized, NotFound),
    )
    async def retrieve_model(name: str) -> dict[str, Any]:
        """One model, or one LoRA adapter."""
        return _object(await catalog.find(name), name, catalog.adapter_of(name))

    return routes


def _object(model: Model, name: str, adapter: str = "") -> dict[str, Any]:
    """`name`: under which it is asked for. `adapter`: its name if it is one of the model."""
    return {
        "id": name,
        "root": adapter or model.name,
        "parent": model.name if adapter else None,
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
        "input_modalities": ["text", "image"] if model.images else ["text"],
    }
