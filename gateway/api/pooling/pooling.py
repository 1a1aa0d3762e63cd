"""POST /pooling: embeddings in vLLM's shape, of texts or of each of their tokens.

With a vector for each token (`token_embed`) a client can compare texts token by token, as ColBERT does.
"""

import time
from collections.abc import Iterable

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import compact
from gateway.api.common.body import read_body
from gateway.api.pooling.answer_schema import PooledList
from gateway.api.pooling.embeddings import (
    WIDE,
    Bounds,
    embedded,
    in_turns,
    listed,
    numbers,
    written,
)
from gateway.api.pooling.embeddings_schema import PoolingBody
from gateway.http.openapi import posting
from gateway.upstream.generator import Generator
from proto.tokenizer_pb2 import EmbedResponse

MOST_NUMBERS = 2**21
"""Numbers of an answer's vectors, which take about a second to write: as many as 2,048 embeddings of 1,024
numbers have."""
OF_TOKENS = Bounds(at_once=8, most_numbers=MOST_NUMBERS)
"""A text's vectors take up to 2.6 MB, and lie in messages and in memory meanwhile."""


def router(generator: Generator) -> APIRouter:
    routes = APIRouter()

    @routes.post("/pooling", openapi_extra=posting(PoolingBody, PooledList))
    async def pool(request: Request) -> Response:
        """Embed one text or several, or each of their tokens, in the shape of vLLM's API."""
        body = await read_body(request, PoolingBody)
        found = await embedded(request, generator, body, OF_TOKENS if body.of_tokens else WIDE)
        if body.of_tokens and body.encoding_format == "float":
            vectors = await _by_tokens(found)
        else:
            vectors = await written(body, found)
        head = compact({"id": f"pool-{request.state.request_id}", "created": int(time.time())})[1:-1]
        answer = listed("pooling", "data", body, found, vectors)
        return Response(f"{{{head},{answer}}}", media_type="application/json")

    return routes


async def _by_tokens(found: Iterable[EmbedResponse]) -> list[str]:
    """Of each text a JSON array with an array for each token."""
    texts = []
    for one in found:
        size = len(one.embedding) // one.tokens
        starts = range(0, len(one.embedding), size)
        tokens = await in_turns(numbers, (one.embedding[start : start + size] for start in starts))
        texts.append(f"[{','.join(tokens)}]")
    return texts
