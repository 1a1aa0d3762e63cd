"""POST /v1/rerank and /v1/score: how alike texts are.

A cross-encoder, which is a classifier with one label, reads the texts of a pair together and scores them. Of
other models the measure is the cosine of the two embeddings.
"""

import asyncio
import struct
import time
from collections.abc import Sequence
from functools import partial
from operator import mul

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import compact
from gateway.api.common.body import read_body
from gateway.api.pooling.answer_schema import AnyRanking, Ranking, Scores
from gateway.api.pooling.embeddings import embedded, vectors
from gateway.api.pooling.rank_schema import Compared, RerankBody, ScoreBody, TextsBody
from gateway.api.pooling.translate import pair_requests
from gateway.http.openapi import posting
from gateway.upstream.catalog import Catalog
from gateway.upstream.generator import Generator
from gateway.upstream.purpose import scores_pairs

AT_ONCE = 16
"""Pairs that are compared at once (about 3 ms). Between them other requests have a turn."""


def router(generator: Generator, catalog: Catalog) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v2/rerank", include_in_schema=False)
    @routes.post("/v1/rerank", openapi_extra=posting(RerankBody, Ranking))
    async def rerank(request: Request) -> Response:
        """Order documents by how alike they are to a query."""
        return await ranking(request, await read_body(request, RerankBody))

    @routes.post("/rerank", openapi_extra=posting(TextsBody, AnyRanking))
    async def rerank_texts(request: Request) -> Response:
        """The same, or in the shape of Text Embeddings Inference."""
        body = await read_body(request, TextsBody)
        if not body.texts:
            return await ranking(request, body)
        scores, _ = await _compared(request, generator, catalog, body)
        answer = [
            {"index": index, "score": scores[index]}
            | ({"text": body.texts[index]} if body.return_text else {})
            for index in best(scores, body.top_n)
        ]
        return Response(compact(answer), media_type="application/json")

    async def ranking(request: Request, body: RerankBody) -> Response:
        scores, tokens = await _compared(request, generator, catalog, body)
        results = [
            {"index": index, "relevance_score": scores[index]}
            | ({"document": {"text": body.ranked[index]}} if body.return_documents else {})
            for index in best(scores, body.top_n)
        ]
        answer = {
            "id": f"rerank-{request.state.request_id}",
            "model": body.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": results,
        }
        return Response(compact(answer), media_type="application/json")

    # Under the name without a version other servers have this, too.
    @routes.post("/score", include_in_schema=False)
    @routes.post("/v1/score", openapi_extra=posting(ScoreBody, Scores))
    async def score(request: Request) -> Response:
        """How alike pairs of texts are."""
        body = await read_body(request, ScoreBody)
        scores, tokens = await _compared(request, generator, catalog, body)
        answer = {
            "id": f"score-{request.state.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model,
            "data": [
                {"index": index, "object": "score", "score": value} for index, value in enumerate(scores)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        return Response(compact(answer), media_type="application/json")

    return routes


async def _compared(
    request: Request, generator: Generator, catalog: Catalog, body: Compared
) -> tuple[list[float], int]:
    """The score of each pair, and the number of tokens that were read.

    Raises `GatewayError` or `Disconnected`.
    """
    if (await catalog.find(body.model)).num_labels:
        pairs = partial(pair_requests, body)
        longer = body.longer_fields()
        found = await vectors(
            request, generator, body, pairs, scores_pairs, lambda number: {"prompt": longer[number]}
        )
        scores = [struct.unpack("<f", one.embedding)[0] for one in found]
    else:
        found = await embedded(
            request, generator, body.embedding(), names=lambda number: {"prompt": body.field_of(number)}
        )
        scores = await cosines([one.embedding for one in found], body.pairs())
    return scores, sum(one.tokens for one in found)


async def cosines(embeddings: Sequence[bytes], pairs: Sequence[tuple[int, int]]) -> list[float]:
    """The cosine of the angle between the embeddings of each pair, which have length 1.

    `embeddings`: little-endian float32, packed.
    """
    vectors: dict[int, tuple[float, ...]] = {}

    def vector(number: int) -> tuple[float, ...]:
        if number not in vectors:
            packed = embeddings[number]
            vectors[number] = struct.unpack(f"<{len(packed) // 4}f", packed)
        return vectors[number]

    found = []
    for place, (one, other) in enumerate(pairs, 1):
        found.append(sum(map(mul, vector(one), vector(other))))
        del vectors[other]  # no other pair has it
        if place % AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


def best(scores: Sequence[float], most: int | None) -> list[int]:
    """Numbers of the highest scores, `most` at most, the best one first; of equal ones the earlier one."""
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])
    return ranked[:most]
