"""POST /embed and GET /info of Text Embeddings Inference, whose /rerank `rank.py` has."""

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import compact
from gateway.api.common.body import read_body
from gateway.api.common.fields import MAX_INPUTS
from gateway.api.pooling.answer_schema import TextModelInfo, TextVectors
from gateway.api.pooling.embeddings import embedded, in_turns, numbers
from gateway.api.pooling.texts_schema import EmbedTextsBody, TextsError
from gateway.errors import NotFound, Unauthorized
from gateway.http.openapi import getting, posting
from gateway.upstream.catalog import Catalog, Model
from gateway.upstream.generator import Generator


def router(generator: Generator, catalog: Catalog, version: str) -> APIRouter:
    routes = APIRouter()

    @routes.post("/embed", openapi_extra=posting(EmbedTextsBody, TextVectors, error=TextsError))
    async def embed_texts(request: Request) -> Response:
        """Embed one text or several, in the shape of Text Embeddings Inference."""
        body = (await read_body(request, EmbedTextsBody)).embedding()
        found = await embedded(request, generator, body, names=lambda _: {"prompt": "inputs"})
        vectors = ",".join(await in_turns(numbers, (one.embedding for one in found)))
        return Response(f"[{vectors}]", media_type="application/json")

    @routes.get(
        "/info",
        openapi_extra=getting(TextModelInfo, Unauthorized, NotFound, error=TextsError)
        | {"parameters": [{"name": "model", "in": "query", "schema": {"type": "string"}}]},
    )
    async def info(request: Request) -> Response:
        """The only model, or the one that is named, in the shape of Text Embeddings Inference."""
        model = await catalog.find(request.query_params.get("model") or await catalog.only())
        answer = {
            "model_id": model.name,
            "model_type": {_kind(model): {}},
            "max_concurrent_requests": model.capacity,
            "max_input_length": model.max_model_len,
            "max_client_batch_size": MAX_INPUTS,
            "auto_truncate": False,
            "version": version,
        }
        return Response(compact(answer), media_type="application/json")

    return routes


def _kind(model: Model) -> str:
    if not model.num_labels:
        return "embedding"
    return "reranker" if model.num_labels == 1 else "classifier"
