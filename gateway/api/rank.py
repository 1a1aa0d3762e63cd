"""POST /v1/rerank and /v1/score: how alike texts are, by the cosines of their embeddings."""

import asyncio
import struct
import time
from collections.abc import Sequence
from operator import mul

from fastapi import APIRouter, Request, Response

from gateway.api.answer import compact
from gateway.api.answer_schema import Ranking, Scores
from gateway.api.body import read_body
from gateway.api.embeddings import embedded
from gateway.api.rank_schema import RerankBody, ScoreBody
from gateway.http.openapi import posting
from gateway.upstream.generation import Generator

AT_ONCE = 16
"""Pairs that are compared at once (about 3 ms). Between them other requests have a turn."""


def router(generator: Generator) -> APIRouter:
    routes = APIRouter()

    # Under the names without a version other servers have these, too.
    @routes.post("/rerank", include_in_schema=False)
    @routes.post("/v2/rerank", include_in_schema=False)
    @routes.post("/v1/rerank", openapi_extra=posting(RerankBody, Ranking))
    async def rerank(request: Request) -> Response:
        """Order documents by how alike they are to a query."""
        body = await read_body(request, RerankBody)
        found = await embedded(request, generator, body.embedding())
        pairs = [(0, number) for number in range(1, len(found))]
        scores = await cosines([one.embedding for one in found], pairs)
        results = [
            {"index": index, "relevance_score": scores[index]}
            | ({"document": {"text": body.documents[index]}} if body.return_documents else {})
            for index in best(scores, body.top_n)
        ]
        tokens = sum(one.tokens for one in found)
        answer = {
            "id": f"rerank-{request.state.request_id}",
            "model": body.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": results,
        }
        return Response(compact(answer), media_type="application/json")

    @routes.post("/score", include_in_schema=False)
    @routes.post("/v1/score", openapi_extra=posting(ScoreBody, Scores))
    async def score(request: Request) -> Response:
        """How alike pairs of texts are."""
        body = await read_body(request, ScoreBody)
        found = await embedded(request, generator, body.embedding())
        scores = await cosines([one.embedding for one in found], body.pairs())
        tokens = sum(one.tokens for one in found)
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
