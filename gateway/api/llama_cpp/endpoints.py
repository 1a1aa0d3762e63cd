"""POST /completion and /infill, in the shape of llama.cpp's server.

A request becomes one of /v1/completions, or with a gap one of the chat API (`gateway.api.infill`).
"""

from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.api.common.body import made_of, note, read_body
from gateway.api.infill.endpoints import infill_requests
from gateway.api.llama_cpp.answer import LlamaCompletionAnswer, LlamaInfillAnswer
from gateway.api.llama_cpp.answer_schema import LlamaText
from gateway.api.llama_cpp.schema import InfillBody, LlamaCompletionBody
from gateway.api.openai.respond import respond
from gateway.api.openai.translate import completion_requests
from gateway.http.openapi import posting
from gateway.upstream.catalog import Catalog
from gateway.upstream.generator import Generator


def router(generator: Generator, catalog: Catalog) -> APIRouter:
    routes = APIRouter()

    @routes.post("/completion", openapi_extra=posting(LlamaCompletionBody, LlamaText, event=LlamaText))
    async def complete(request: Request) -> Response:
        """Continue a text, in the shape of llama.cpp's API."""
        asked = await read_body(request, LlamaCompletionBody)
        for name in sorted(asked.unanswered):
            note(request, name)
        context = (await catalog.find(asked.model)).max_model_len
        kind = partial(LlamaCompletionAnswer, asked.response_fields, asked.n_predict == 0, context)
        body = await made_of(request, asked.completion)
        return await respond(request, generator, body, completion_requests, kind)

    @routes.post("/infill", openapi_extra=posting(InfillBody, LlamaText, event=LlamaText))
    async def infill(request: Request) -> Response:
        """Fill the gap between two texts, in the shape of llama.cpp's API."""
        asked = await read_body(request, InfillBody)
        context = (await catalog.find(asked.model)).max_model_len
        kind = partial(LlamaInfillAnswer, asked.response_fields, asked.n_predict == 0, context)
        body = await made_of(request, asked.chat)
        return await respond(request, generator, body, partial(infill_requests, asked.gap()), kind)

    return routes
