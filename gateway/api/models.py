"""GET /v1/models."""

from typing import Any

from fastapi import APIRouter

from gateway.upstream.catalog import Catalog, Model


def router(catalog: Catalog) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """The models that are available."""
        models = await catalog.models()
        return {"object": "list", "data": [_object(model) for model in models if not model.missing]}

    @routes.get("/v1/models/{name:path}")
    async def retrieve_model(name: str) -> dict[str, Any]:
        """One model."""
        return _object(await catalog.find(name))

    return routes


def _object(model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "quire",
        "max_model_len": model.max_model_len,
        "defaults": model.defaults,
    }
