"""POST /v1/embeddings, and /pooling: the same vectors in vLLM's shape."""

import asyncio
import base64
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.api.answer import compact
from gateway.api.body import read_body
from gateway.api.budget import seconds_of
from gateway.api.embeddings_schema import EmbeddingBody
from gateway.api.pooling_answer_schema import EmbeddingList, PooledList
from gateway.api.request_schema import RequestBody
from gateway.api.translate import embedding_requests
from gateway.http.caller import Caller, caller_of
from gateway.http.connection import while_connected
from gateway.http.openapi import posting
from gateway.upstream.attempts import Attempts, Parts
from gateway.upstream.generation import Generator
from gateway.upstream.purpose import Check, embeds
from proto.rpc import Resumption
from proto.tokenizer_pb2 import EmbedRequest, EmbedResponse
from proto.tokenizer_pb2_grpc import TokenizerStub

AT_ONCE = 64
"""Texts of one request that are embedded at the same time: enough to fill steps and leave others a turn."""

NAMES = {"prompt": "input"}
"""Parameters of these endpoints, by their names in tokenizer.proto."""


def router(generator: Generator) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/embeddings", openapi_extra=posting(EmbeddingBody, EmbeddingList))
    async def create_embeddings(request: Request) -> Response:
        """Embed one text or several."""
        body = await read_body(request, EmbeddingBody)
        found = await embedded(request, generator, body)
        answer = _listed("embedding", "embedding", body, found)
        return Response(f"{{{answer}}}", media_type="application/json")

    @routes.post("/pooling", openapi_extra=posting(EmbeddingBody, PooledList))
    async def pool(request: Request) -> Response:
        """Embed one text or several, in the shape of vLLM's API."""
        body = await read_body(request, EmbeddingBody)
        found = await embedded(request, generator, body)
        head = compact({"id": f"pool-{request.state.request_id}", "created": int(time.time())})[1:-1]
        answer = _listed("pooling", "data", body, found)
        return Response(f"{{{head},{answer}}}", media_type="application/json")

    return routes


async def embedded(request: Request, generator: Generator, body: EmbeddingBody) -> list[EmbedResponse]:
    """The embeddings that `body` asks for. Raises `GatewayError` or `Disconnected`."""
    return await vectors(request, generator, body, partial(embedding_requests, body), embeds, NAMES)


async def vectors(
    request: Request,
    generator: Generator,
    body: RequestBody,
    make: Callable[[str, Caller], list[EmbedRequest]],
    fits: Check,
    names: Mapping[str, str],
) -> list[EmbedResponse]:
    """A vector for each of the requests that `make` makes, given the request's id and its caller.

    `fits`: raises `BadRequest` if the model is not for this. `names`: the endpoint's names of parameters of
    tokenizer.proto. Raises `GatewayError` or `Disconnected`.
    """
    caller = caller_of(request)
    generator.check_room(body.model, caller.tenant, body.user)
    requests = make(request.state.request_id, caller)
    found: list[EmbedResponse] = []
    await caller.begin(0, lambda: sum(one.tokens for one in found))
    timeout = seconds_of(body, caller.limits)
    embedding = _embed(generator, body.model, requests, timeout, fits, names)
    found += await while_connected(request.receive, embedding)
    return found


class Embedding(Attempts):
    """One text's embedding, or its labels. When a server dies, the next one starts from the beginning."""

    def __init__(
        self,
        tokenizer: TokenizerStub,
        request: EmbedRequest,
        timeout: float | None = None,
        parts: Parts | None = None,
        names: Mapping[str, str] = NAMES,
    ) -> None:
        super().__init__(timeout, parts)
        self._tokenizer, self._request, self._names = tokenizer, request, names

    async def result(self) -> EmbedResponse:
        """The tokenizer service's response. Raises `GatewayError`."""
        resumption = Resumption()
        while self._ended_by is None:
            async with self._attempt(self._tokenizer.Embed, self._request, resumption, self._names) as call:
                response: EmbedResponse = await call
                return response
        raise self._ended_by


async def _embed(
    generator: Generator,
    model: str,
    requests: Sequence[EmbedRequest],
    timeout: float | None,
    fits: Check,
    names: Mapping[str, str],
) -> list[EmbedResponse]:
    """The responses to all requests, or the first error."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def in_turn(embedding: Embedding) -> EmbedResponse:
        async with turns:
            return await embedding.result()

    timeout = generator.answer_timeout if timeout is None else timeout

    def begin(tokenizer: TokenizerStub) -> list[Embedding]:
        parts = Parts()
        return [Embedding(tokenizer, request, timeout, parts, names) for request in requests]

    async with generator.watched(model, begin, requests, timeout, AT_ONCE, fits) as embeddings:
        tasks = [asyncio.ensure_future(in_turn(embedding)) for embedding in embeddings]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _listed(kind: str, name: str, body: EmbeddingBody, found: Sequence[EmbedResponse]) -> str:
    """The fields of an answer with all vectors. Each is an object of this `kind`, which has it as `name`."""
    written = _base64 if body.encoding_format == "base64" else numbers
    data = [
        f'{{"object":"{kind}","index":{index},"{name}":{written(one.embedding)}}}'
        for index, one in enumerate(found)
    ]
    tokens = sum(one.tokens for one in found)
    usage = compact({"prompt_tokens": tokens, "total_tokens": tokens})
    return f'"object":"list","data":[{",".join(data)}],"model":{compact(body.model)},"usage":{usage}'


def _base64(packed: bytes) -> str:
    return f'"{base64.b64encode(packed).decode()}"'


def numbers(packed: bytes) -> str:
    """A JSON array. Nine digits are enough to tell every float32 from its neighbours."""
    return f"[{','.join([f'{number:.9g}' for (number,) in struct.iter_unpack('<f', packed)])}]"
