"""GET /v1/models, for clients of OpenAI's API and of Anthropic's: its objects have the fields of both.

And what LM Studio (/api/v0/models) and llama.cpp (/props) tell of models.
"""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import compact
from gateway.api.ollama.answer_schema import OllamaError
from gateway.api.system.models_answer_schema import (
    LocalModel,
    LocalModels,
    ModelList,
    ModelObject,
    Properties,
)
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

    _add_of_others(routes, catalog)
    return routes


def _add_of_others(routes: APIRouter, catalog: Catalog) -> None:
    @routes.get(
        "/api/v0/models",
        response_model=None,
        openapi_extra=getting(LocalModels, Unauthorized, error=OllamaError),
    )
    async def list_local_models() -> dict[str, Any]:
        """The models that are available, in the shape of LM Studio's API."""
        return {"object": "list", "data": [_local(one) for one in await catalog.models() if not one.missing]}

    @routes.get(
        "/api/v0/models/{name:path}",
        response_model=None,
        openapi_extra=getting(LocalModel, Unauthorized, NotFound, error=OllamaError),
    )
    async def retrieve_local_model(name: str) -> dict[str, Any]:
        """One model, in the shape of LM Studio's API."""
        return _local(await catalog.find(name))

    @routes.get(
        "/props",
        openapi_extra=getting(Properties, Unauthorized, NotFound)
        | {"parameters": [{"name": "model", "in": "query", "schema": {"type": "string"}}]},
    )
    async def properties(request: Request) -> Response:
        """The only model, or the one that is named as `model`, in the shape of llama.cpp's API."""
        model = await catalog.find(request.query_params.get("model") or await catalog.only())
        answer = {
            "default_generation_settings": {"n_ctx": model.max_model_len, "params": dict(model.defaults)},
            "total_slots": model.capacity,
            "model_alias": model.name,
            "model_path": model.name,
            "modalities": {"vision": model.images, "audio": False},
        }
        return Response(compact(answer), media_type="application/json")


def _local(model: Model) -> dict[str, Any]:
    generates = "vlm" if model.images else "llm"
    return {
        "id": model.name,
        "object": "model",
        "type": generates if model.generates else "embeddings",
        "publisher": "quire",
        "arch": "",
        "compatibility_type": "safetensors",
        "quantization": "",
        "state": "loaded",
        "max_context_length": model.max_model_len,
        "loaded_context_length": model.max_model_len,
    }


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
        "context_length": model.max_model_len,
        "max_context_length": model.max_model_len,
        "max_tokens": model.max_model_len,
        "lifecycle": "active",
        "defaults": model.defaults,
        "num_labels": model.num_labels,
        "generates": model.generates,
        "input_modalities": ["text", "image"] if model.images else ["text"],
    }
