"""POST /v1/embeddings."""

import asyncio
import base64
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import compact
from gateway.api.common.body import read_body
from gateway.api.common.request_schema import RequestBody
from gateway.api.generation.budget import seconds_of
from gateway.api.pooling.answer_schema import EmbeddingList
from gateway.api.pooling.embeddings_schema import EmbeddingBody
from gateway.api.pooling.translate import embedding_requests
from gateway.errors import BadRequest
from gateway.http.caller import Caller, caller_of
from gateway.http.connection import while_connected
from gateway.http.openapi import posting
from gateway.upstream.attempts import Attempts, Parts
from gateway.upstream.generator import Generator
from gateway.upstream.purpose import Check, embeds
from proto.rpc import Resumption
from proto.tokenizer_pb2 import EmbedRequest, EmbedResponse
from proto.tokenizer_pb2_grpc import TokenizerStub

AT_ONCE = 64
"""Texts of one request that are embedded at the same time: enough to fill steps and leave others a turn."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request may take."""

    at_once: int = AT_ONCE
    """Texts at the same time."""
    most_numbers: int | None = None
    """Numbers of all vectors together; None: any."""


WIDE = Bounds()
Names = Callable[[int], Mapping[str, str]]
"""An endpoint's names of parameters of tokenizer.proto, for the text of this number."""


def of_input(number: int) -> Mapping[str, str]:
    """The names of endpoints whose texts are all in `input`."""
    return {"prompt": "input"}


def router(generator: Generator) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/embeddings", openapi_extra=posting(EmbeddingBody, EmbeddingList))
    async def create_embeddings(request: Request) -> Response:
        """Embed one text or several."""
        body = await read_body(request, EmbeddingBody)
        found = await embedded(request, generator, body)
        answer = listed("embedding", "embedding", body, found, await written(body, found))
        return Response(f"{{{answer}}}", media_type="application/json")

    return routes


async def embedded(
    request: Request,
    generator: Generator,
    body: EmbeddingBody,
    bounds: Bounds = WIDE,
    names: Names = of_input,
) -> list[EmbedResponse]:
    """The embeddings that `body` asks for. `names`, errors: see `vectors`."""
    make = partial(embedding_requests, body)
    return await vectors(request, generator, body, make, embeds, names, bounds)


async def vectors(
    request: Request,
    generator: Generator,
    body: RequestBody,
    make: Callable[[str, Caller], list[EmbedRequest]],
    fits: Check,
    names: Names,
    bounds: Bounds = WIDE,
) -> list[EmbedResponse]:
    """A vector for each of the requests that `make` makes, given the request's id and its caller.

    `fits`: raises `BadRequest` if the model is not for this. `names`: for errors. Raises `GatewayError` or
    `Disconnected`.
    """
    caller = caller_of(request)
    generator.check_room(body.model, caller.tenant, body.user)
    requests = make(request.state.request_id, caller)
    found: list[EmbedResponse] = []
    await caller.begin(0, lambda: sum(one.tokens for one in found))
    timeout = seconds_of(body, caller.limits)
    embedding = _embed(generator, body.model, requests, timeout, fits, names, bounds)
    found += await while_connected(request.receive, embedding)
    return found


class Embedding(Attempts):
    """One text's embedding, or its labels. When a server dies, the next one starts from the beginning."""

    def __init__(
        self,
        tokenizer: TokenizerStub,
        request: EmbedRequest,
        timeout: float | None,
        parts: Parts,
        names: Mapping[str, str],
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
    names: Names,
    bounds: Bounds,
) -> list[EmbedResponse]:
    """The responses to all requests, or the first error."""
    turns, held, most = asyncio.Semaphore(bounds.at_once), 0, bounds.most_numbers

    async def in_turn(embedding: Embedding) -> EmbedResponse:
        nonlocal held
        async with turns:
            found = await embedding.result()
            held += len(found.embedding) // 4
            if most is not None and held > most:
                message = f"The vectors of all texts have more than {most} numbers: ask for fewer at once."
                raise BadRequest(message, param="input", code="invalid_value")
            return found

    timeout = generator.answer_timeout if timeout is None else timeout

    def begin(tokenizer: TokenizerStub) -> list[Embedding]:
        parts = Parts()
        return [
            Embedding(tokenizer, request, timeout, parts, names(number))
            for number, request in enumerate(requests)
        ]

    async with generator.watched(model, begin, requests, timeout, bounds.at_once, fits) as embeddings:
        tasks = [asyncio.ensure_future(in_turn(embedding)) for embedding in embeddings]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def written(body: EmbeddingBody, found: Iterable[EmbedResponse]) -> list[str]:
    """The vectors as JSON, in the format that `body` asks for."""
    write = _base64 if body.encoding_format == "base64" else numbers
    return await in_turns(write, (one.embedding for one in found))


async def in_turns(write: Callable[[bytes], str], vectors: Iterable[bytes]) -> list[str]:
    """The vectors as JSON. Other requests have turns between them: 1,024 numbers take half a millisecond."""
    texts = []
    for vector in vectors:
        texts.append(write(vector))
        await asyncio.sleep(0)
    return texts


def listed(
    kind: str, name: str, body: EmbeddingBody, found: Sequence[EmbedResponse], vectors: Iterable[str]
) -> str:
    """The fields of an answer with `vectors`: each is an object of this `kind`, which has it as `name`."""
    data = [
        f'{{"object":"{kind}","index":{index},"{name}":{vector}}}' for index, vector in enumerate(vectors)
    ]
    tokens = sum(one.tokens for one in found)
    usage = compact({"prompt_tokens": tokens, "total_tokens": tokens})
    return f'"object":"list","data":[{",".join(data)}],"model":{compact(body.model)},"usage":{usage}'


def _base64(packed: bytes) -> str:
    return f'"{base64.b64encode(packed).decode()}"'


def numbers(packed: bytes) -> str:
    """A JSON array. Nine digits are enough to tell every float32 from its neighbours."""
    return f"[{','.join([f'{number:.9g}' for (number,) in struct.iter_unpack('<f', packed)])}]"
