"""GET /v1/inside: what goes on inside the deployment, as it changes; and what single blocks hold.

What the stream tells is in `gateway/upstream/picture.py`.
"""

from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import compact
from gateway.api.openai.completions_schema import CompletionBody
from gateway.api.openai.tokenize import prompt_of
from gateway.errors import Forbidden, NotFound
from gateway.http.caller import caller_of
from gateway.http.sse import EventStream, event
from gateway.upstream.generator import Generator
from gateway.upstream.inside import Inside


def router(generator: Generator, inside: Inside, trace_url: str) -> APIRouter:
    """`trace_url`: where a trace is shown, with `{id}` in place of its id; empty: nowhere."""
    routes = APIRouter()

    @routes.get("/v1/inside", include_in_schema=False)
    async def watch(request: Request) -> Response:
        caller_of(request).check_inside()
        return EventStream(_events(inside))

    @routes.get("/v1/inside/rights", include_in_schema=False)
    async def rights(request: Request) -> Response:
        """What the page may offer to the caller."""
        caller = caller_of(request)
        caller.check_inside()
        found = {"text": "text" in caller.rights, "trace_url": trace_url}
        return Response(compact(found), media_type="application/json")

    @routes.get("/v1/inside/{scheduler}/{worker}/{block}", include_in_schema=False)
    async def read_block(request: Request, scheduler: str, worker: str, block: str) -> Response:
        """The tokens of a block, of a scheduler that somebody watches through this gateway."""
        caller = caller_of(request)
        caller.check_inside()
        content, model = inside.block(scheduler, _number(worker), _number(block)), inside.model(scheduler)
        if content is None or model is None:
            raise NotFound("It is not known what the block holds.", code="block_not_known")
        if not caller.may_read(content.tenant):
            hint = "a key that may is made with `quire keys add NAME --rights inside text`"
            raise Forbidden(f"This API key may not read what others ask: {hint}.", code="no_right")
        text = ""
        if content.tokens:
            body = CompletionBody(model=model, prompt=content.tokens.tolist(), echo=True, max_tokens=0)
            text = (await prompt_of(request, generator, body)).text
        found = {
            "request_id": content.request_id,
            "index": content.index,
            "start": content.start,
            "tokens": content.tokens.tolist(),
            "text": text,
        }
        return Response(compact(found), media_type="application/json")

    return routes


def _number(text: str) -> int:
    """A number out of a path; -1, which nothing has, for what is none."""
    return int(text) if text.isdecimal() and len(text) < 10 else -1


async def _events(inside: Inside) -> AsyncGenerator[str, None]:
    async for change in inside.watch():
        yield event(change)
