"""POST /v1/embeddings."""

import asyncio
import base64
import struct
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from gateway.api.answer import compact
from gateway.api.body import read_body
from gateway.api.schema import EmbeddingBody
from gateway.api.translate import embedding_requests
from gateway.http.connection import while_connected
from gateway.http.guard import tenant_of
from gateway.http.openapi import request_body
from gateway.upstream.attempts import Attempts, Parts
from gateway.upstream.generation import Generator
from proto.rpc import Resumption
from proto.tokenizer_pb2 import EmbedRequest, EmbedResponse
from proto.tokenizer_pb2_grpc import TokenizerStub

AT_ONCE = 64
"""Texts of one request that are embedded at the same time: enough to fill steps and leave others a turn."""

NAMES = {"prompt": "input"}
"""Parameters of this endpoint, by their names in tokenizer.proto."""


def router(generator: Generator) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/embeddings", openapi_extra={"requestBody": request_body(EmbeddingBody)})
    async def create_embeddings(request: Request) -> Response:
        """Embed one text or several."""
        body = await read_body(request, EmbeddingBody)
        requests = embedding_requests(body, request.state.request_id, tenant_of(request))
        found = await while_connected(request.receive, _embed(generator, body, requests))
        return Response(_answer(body, found), media_type="application/json")

    return routes


class Embedding(Attempts):
    """One text's embedding. When a server dies, the next one starts from the beginning."""

    def __init__(
        self,
        tokenizer: TokenizerStub,
        request: EmbedRequest,
        timeout: float | None = None,
        parts: Parts | None = None,
    ) -> None:
        super().__init__(timeout, parts)
        self._tokenizer, self._request = tokenizer, request

    async def result(self) -> EmbedResponse:
        """The tokenizer service's response. Raises `GatewayError`."""
        resumption = Resumption()
        while self._ended_by is None:
            async with self._attempt(self._tokenizer.Embed, self._request, resumption, NAMES) as call:
                response: EmbedResponse = await call
                return response
        raise self._ended_by


async def _embed(
    generator: Generator, body: EmbeddingBody, requests: Sequence[EmbedRequest]
) -> list[EmbedResponse]:
    """The responses to all requests, or the first error."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def in_turn(embedding: Embedding) -> EmbedResponse:
        async with turns:
            return await embedding.result()

    def begin(tokenizer: TokenizerStub) -> list[Embedding]:
        parts = Parts()
        return [Embedding(tokenizer, request, body.timeout, parts) for request in requests]

    async with generator.watched(body.model, begin) as embeddings:
        tasks = [asyncio.ensure_future(in_turn(embedding)) for embedding in embeddings]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _answer(body: EmbeddingBody, found: Sequence[EmbedResponse]) -> str:
    written = _base64 if body.encoding_format == "base64" else _numbers
    data = [
        f'{{"object":"embedding","index":{index},"embedding":{written(one.embedding)}}}'
        for index, one in enumerate(found)
    ]
    tokens = sum(one.tokens for one in found)
    usage = compact({"prompt_tokens": tokens, "total_tokens": tokens})
    return f'{{"object":"list","data":[{",".join(data)}],"model":{compact(body.model)},"usage":{usage}}}'


def _base64(packed: bytes) -> str:
    return f'"{base64.b64encode(packed).decode()}"'


def _numbers(packed: bytes) -> str:
    """A JSON array. Nine digits are enough to tell every float32 from its neighbours."""
    return f"[{','.join([f'{number:.9g}' for (number,) in struct.iter_unpack('<f', packed)])}]"
