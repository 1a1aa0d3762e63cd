"""POST /tokenize and /detokenize."""

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import compact
from gateway.api.common.body import read_body
from gateway.api.generation.budget import seconds_of
from gateway.api.openai.answer_schema import Detokenized, Tokens
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.completions_schema import CompletionBody
from gateway.api.openai.seen import images_of
from gateway.api.openai.token_schema import DetokenizeBody, TokenizeBody
from gateway.api.openai.translate import chat_requests, completion_requests
from gateway.http.caller import caller_of
from gateway.http.connection import while_connected
from gateway.http.openapi import posting
from gateway.upstream.catalog import Catalog
from gateway.upstream.generator import Generator
from gateway.upstream.tokenization import tokenize
from proto.tokenizer_pb2 import TokenizeResponse


def router(generator: Generator, catalog: Catalog) -> APIRouter:
    routes = APIRouter()

    @routes.post("/tokenize", openapi_extra=posting(TokenizeBody, Tokens))
    async def tokenize_prompt(request: Request) -> Response:
        """The tokens of a prompt or a conversation, as an answer to it would have them."""
        body = await read_body(request, TokenizeBody)
        model = await catalog.find(body.model)
        if body.content == "":
            found = TokenizeResponse()
        else:
            found = await prompt_of(request, generator, body.asked(model.name), names=body.return_token_strs)
        answer = {
            "count": len(found.token_ids),
            "max_model_len": model.max_model_len,
            "tokens": list(found.token_ids),
            "token_strs": list(found.names) if body.return_token_strs else None,
        }
        return Response(compact(answer), media_type="application/json")

    @routes.post("/detokenize", openapi_extra=posting(DetokenizeBody, Detokenized))
    async def detokenize_tokens(request: Request) -> Response:
        """The text of tokens, special ones among them."""
        body = await read_body(request, DetokenizeBody)
        found = await prompt_of(request, generator, body.asked())
        return Response(compact({"prompt": found.text, "content": found.text}), media_type="application/json")

    return routes


async def prompt_of(
    request: Request, generator: Generator, body: ChatBody | CompletionBody, *, names: bool = False
) -> TokenizeResponse:
    """The prompt that an answer to `body` would have. Raises `GatewayError` or `Disconnected`."""
    caller, request_id = caller_of(request), request.state.request_id
    generator.check_room(body.model, caller.tenant, body.user)
    if isinstance(body, ChatBody):
        (prompt,) = chat_requests(body, request_id, caller)
    else:
        (prompt,) = completion_requests(body, request_id, caller)
    await caller.begin(0, lambda: 0)
    images = await images_of(request, generator, body, [prompt])
    seconds = seconds_of(body, caller.limits)
    asking = tokenize(generator, body.model, prompt, names=names, timeout=seconds, images=images)
    return await while_connected(request.receive, asking)
