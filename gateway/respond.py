"""An answer as an HTTP response: as a stream of events, or whole."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request, Response

from gateway.answer import Answer
from gateway.connection import while_connected
from gateway.sse import EventStream
from proto.tokenizer_pb2 import TextChunk

Chunks = AsyncGenerator[tuple[int, TextChunk], None]


async def respond(request: Request, answer: Answer, chunks: Chunks) -> Response:
    """Raises `Disconnected` if the client leaves before the answer is complete."""
    if answer.ask.stream:
        return EventStream(_events(answer, chunks))
    body = await while_connected(request.receive, _body(answer, chunks))
    return Response(body, media_type="application/json")


async def _events(answer: Answer, chunks: Chunks) -> AsyncGenerator[str, None]:
    async with aclosing(chunks):
        async for prompt, chunk in chunks:
            if events := answer.events(prompt, chunk):
                yield events
    yield answer.last_events()


async def _body(answer: Answer, chunks: Chunks) -> str:
    async with aclosing(chunks):
        async for prompt, chunk in chunks:
            answer.add(prompt, chunk)
    return answer.body()
