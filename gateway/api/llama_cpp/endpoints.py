"""POST /completion, in the shape of llama.cpp's server. A request becomes one of /v1/completions."""

from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.api.common.body import made_of, read_body
from gateway.api.infill.answer import LlamaAnswer
from gateway.api.infill.schema import LlamaText
from gateway.api.llama_cpp.schema import LlamaCompletionBody
from gateway.api.openai.completions import CompletionAnswer
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
        context = (await catalog.find(asked.model)).max_model_len
        body = await made_of(request, asked.completion)
        kind = partial(LlamaCompletionAnswer, asked.response_fields, asked.n_predict == 0, context)
        return await respond(request, generator, body, completion_requests, kind)

    return routes


class LlamaCompletionAnswer(LlamaAnswer, CompletionAnswer):
    """An answer of /completion."""
