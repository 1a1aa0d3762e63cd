"""An answer as an HTTP response: a stream of events, or one JSON object."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from fastapi import Request, Response

from gateway.api.generation.answer import Answer
from gateway.api.generation.budget import asked_tokens_of, seconds_of
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.completions_schema import CompletionBody
from gateway.api.openai.seen import images_of
from gateway.http.caller import Caller, caller_of
from gateway.http.connection import while_connected
from gateway.http.sse import EventStream
from gateway.upstream.generation import Chunks, Shorten
from gateway.upstream.generator import Generator
from proto.tokenizer_pb2 import TextRequest

Body = TypeVar("Body", ChatBody, CompletionBody)
Running = AbstractAsyncContextManager[Chunks]
"""The result of `Generator.run`."""


async def respond(
    request: Request,
    generator: Generator,
    body: Body,
    requests_of: Callable[[Body, str, Caller], Sequence[TextRequest]],
    kind: Callable[[Body, str, int], Answer],
    shorten: Shorten | None = None,
) -> Response:
    """Ask for what `body` wants, and answer.

    `requests_of` makes a request for each prompt, out of the body, the request's id and the caller. `kind`
    makes the answer, out of the body, the id and the number of prompts. `shorten`: see `Generator.run`.
    Raises `GatewayError`, and `Disconnected` if the client leaves before a collected answer is complete.
    """
    caller = caller_of(request)
    generator.check_room(body.model, caller.tenant, body.user)
    requests = requests_of(body, request.state.request_id, caller)
    answer = kind(body, request.state.request_id, len(requests))
    await caller.begin(asked_tokens_of(body, caller.limits), answer.tokens)
    images = await images_of(request, generator, body, requests)
    running = generator.run(body.model, requests, seconds_of(body, caller.limits), images, shorten)
    if answer.request.stream:
        ends = (answer.failed, answer.last_events, answer.keep_alive)
        return EventStream(_events(answer, running), answer.stream_type, *ends)
    text = await while_connected(request.receive, _body(answer, running))
    return Response(text, media_type="application/json")


async def _events(answer: Answer, running: Running) -> AsyncGenerator[str, None]:
    async with running as chunks:
        async for prompt, chunk in chunks:
            if events := answer.events(prompt, chunk):
                yield events
    await answer.keep()


async def _body(answer: Answer, running: Running) -> str:
    async with running as chunks:
        async for prompt, chunk in chunks:
            answer.add(prompt, chunk)
    await answer.keep()
    return answer.body()
