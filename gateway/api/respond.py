"""An answer as an HTTP response: a stream of events, or one JSON object."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager

from fastapi import Request, Response

from gateway.api.answer import Answer
from gateway.http.connection import while_connected
from gateway.http.sse import EventStream
from gateway.upstream.generation import Chunks

Running = AbstractAsyncContextManager[Chunks]
"""The result of `Generator.run`."""


async def respond(request: Request, answer: Answer, running: Running) -> Response:
    """The response. Raises `Disconnected` if the client leaves before a collected answer is complete."""
    if answer.request.stream:
        return EventStream(_events(answer, running), answer.stream_type)
    body = await while_connected(request.receive, _body(answer, running))
    return Response(body, media_type="application/json")


async def _events(answer: Answer, running: Running) -> AsyncGenerator[str, None]:
    async with running as chunks:
        async for prompt, chunk in chunks:
            if events := answer.events(prompt, chunk):
                yield events
    yield answer.last_events()


async def _body(answer: Answer, running: Running) -> str:
    async with running as chunks:
        async for prompt, chunk in chunks:
            answer.add(prompt, chunk)
    return answer.body()
