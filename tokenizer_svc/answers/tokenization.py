"""Prompts as tokens, and tokens as text, for clients that ask for nothing else."""

from proto.tokenizer_pb2 import TokenizeRequest, TokenizeResponse
from tokenizer_svc.answers.prompt_scores import text_of
from tokenizer_svc.model.images import ImageSizes
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.context import ContextLength
from tokenizer_svc.requests.prompt import Render, prompt_of

FEW = 4096
"""Tokens that are turned into text at once (about 2 ms). More of them are turned in a thread."""


async def tokenized(
    model: TextModel,
    request: TokenizeRequest,
    context: ContextLength,
    render: Render | None,
    sizes: ImageSizes,
) -> TokenizeResponse:
    """`context`, `render`, `sizes`, errors: as for `prompt_of`."""
    tokens = (await prompt_of(model, request.request, context, render, sizes)).tokens
    if len(tokens) <= FEW:
        return _spelled(model, request, tokens)
    return await model.aside.run(request.request.tenant, len(tokens), _spelled, model, request, tokens)


def _spelled(model: TextModel, request: TokenizeRequest, tokens: list[int]) -> TokenizeResponse:
    response = TokenizeResponse(token_ids=tokens)
    if request.request.echo:
        visible = model.plain_tokens if request.request.skip_special_tokens else model.every_token
        response.text = text_of(tokens, visible)
    if request.names:
        response.names.extend(model.tokenizer.id_to_token(token) or "" for token in tokens)
    return response
