"""POST /v1/classify: the labels of texts, by models with a classification head."""

import time
from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import compact
from gateway.api.common.body import read_body
from gateway.api.pooling.answer_schema import Classification
from gateway.api.pooling.classify_schema import ClassifyBody
from gateway.api.pooling.embeddings import numbers, vectors
from gateway.api.pooling.translate import classify_requests
from gateway.http.openapi import posting
from gateway.upstream.generator import Generator
from gateway.upstream.purpose import classifies
from proto.tokenizer_pb2 import EmbedResponse


def router(generator: Generator) -> APIRouter:
    routes = APIRouter()

    # vLLM has it under this name.
    @routes.post("/classify", include_in_schema=False)
    @routes.post("/v1/classify", openapi_extra=posting(ClassifyBody, Classification))
    async def classify(request: Request) -> Response:
        """Classify one text or several."""
        body = await read_body(request, ClassifyBody)
        names = {"prompt": "input" if body.input else "messages"}
        make = partial(classify_requests, body)
        found = await vectors(request, generator, body, make, classifies, lambda _: names)
        tokens = sum(one.tokens for one in found)
        head = {"id": f"classify-{request.state.request_id}", "object": "list", "created": int(time.time())}
        tail = {"model": body.model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
        data = ",".join(_classified(index, one) for index, one in enumerate(found))
        answer = f'{compact(head)[:-1]},"data":[{data}],{compact(tail)[1:]}'
        return Response(answer, media_type="application/json")

    return routes


def _classified(index: int, found: EmbedResponse) -> str:
    probs, count = numbers(found.embedding), len(found.embedding) // 4
    return f'{{"index":{index},"label":{compact(found.label)},"probs":{probs},"num_classes":{count}}}'
