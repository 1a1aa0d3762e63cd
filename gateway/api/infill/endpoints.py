"""POST /v1/fim/completions: texts with a gap, in the shape of Mistral.

A request becomes one of the chat API, whose conversation does not count.
"""

from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.api.common.body import made_of, read_body
from gateway.api.infill.schema import FimBody
from gateway.api.openai.answer_schema import ChatCompletion, ChatCompletionChunk
from gateway.api.openai.chat import ChatAnswer
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.respond import respond
from gateway.api.openai.translate import chat_requests
from gateway.http.caller import Caller
from gateway.http.openapi import posting
from gateway.upstream.generator import Generator
from proto.tokenizer_pb2 import Infill, TextRequest


def router(generator: Generator) -> APIRouter:
    routes = APIRouter()

    @routes.post(
        "/v1/fim/completions", openapi_extra=posting(FimBody, ChatCompletion, event=ChatCompletionChunk)
    )
    async def fill_in_the_middle(request: Request) -> Response:
        """Fill the gap between two texts, in the shape of Mistral's API."""
        asked = await read_body(request, FimBody)
        body = await made_of(request, asked.chat)
        return await respond(request, generator, body, partial(infill_requests, asked.gap()), ChatAnswer)

    return routes


def infill_requests(gap: Infill, body: ChatBody, request_id: str, caller: Caller) -> list[TextRequest]:
    """Of a body whose conversation does not count. Raises `BadRequest` as `chat_requests` does."""
    (asked,) = chat_requests(body, request_id, caller)
    asked.infill.CopyFrom(gap)
    return [asked]
