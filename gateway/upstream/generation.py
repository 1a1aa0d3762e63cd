"""Generating the answer to a prompt, even if processes die meanwhile: see `attempts.py`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.errors import GatewayError, ServerFault, Unavailable
from gateway.upstream.attempts import Attempts, Parts
from gateway.upstream.backend import Backend
from gateway.upstream.catalog import Catalog
from gateway.upstream.merge import merged
from proto.rpc import Resumption
from proto.tokenizer_pb2 import TextChunk, TextRequest, TextSoFar
from proto.tokenizer_pb2_grpc import TokenizerStub

WATCH_SECONDS = 5.0

Chunks = AsyncGenerator[tuple[int, TextChunk], None]
"""Chunks for one or more prompts, each with its prompt's number."""

Call = TypeVar("Call", bound=Attempts)


@dataclass
class _Sequence:
    """What the gateway has received of one sequence."""

    token_ids: list[int] = field(default_factory=list)
    text_length: int = 0
    finished: bool = False


class Generation(Attempts):
    """The answer to one prompt."""

    def __init__(
        self,
        tokenizer: TokenizerStub,
        request: TextRequest,
        timeout: float | None = None,
        parts: Parts | None = None,
    ) -> None:
        super().__init__(timeout, parts)
        self.request = request
        self._tokenizer = tokenizer
        self._sequences = [_Sequence() for _ in range(request.n)]
        self._prompt_seen = False
        self._names = {"prompt": "messages"} if request.HasField("chat") else {}

    async def chunks(self, number: int = 0) -> Chunks:
        """The chunks that the tokenizer service sends, as if no process had died. Raises `GatewayError`.

        `number`: this prompt's number among the prompts of the request.
        """
        resumption = Resumption()
        while self._ended_by is None and not self._finished:
            request = self._with_so_far()
            async with self._attempt(self._tokenizer.Generate, request, resumption, self._names) as call:
                async for chunk in call:
                    resumption.progressed()
                    self._remember(chunk)
                    yield number, chunk
                if not self._finished:
                    raise ServerFault("The answer ended before it was complete.")
        if self._ended_by is not None and not self._finished:
            raise self._ended_by

    @property
    def _finished(self) -> bool:
        return all(sequence.finished for sequence in self._sequences)

    def _remember(self, chunk: TextChunk) -> None:
        if chunk.HasField("prompt"):
            if self._prompt_seen:
                chunk.ClearField("prompt")
            self._prompt_seen = True
        for delta in chunk.deltas[:]:
            sequence = self._sequences[delta.index]
            sequence.token_ids += delta.token_ids[:]
            sequence.text_length += len(delta.text)
            if delta.finish_reason:
                sequence.finished = True

    def _with_so_far(self) -> TextRequest:
        """The request, with everything received so far."""
        so_far = [
            TextSoFar(
                index=index,
                token_ids=sequence.token_ids,
                text_length=sequence.text_length,
                finished=sequence.finished,
            )
            for index, sequence in enumerate(self._sequences)
        ]
        del self.request.resumed[:]
        if any(sequence.token_ids or sequence.finished for sequence in self._sequences):
            self.request.resumed.extend(so_far)
        return self.request


class Generator:
    """Runs requests, and ends those that wait for a model that is lost."""

    def __init__(self, backend: Backend, catalog: Catalog) -> None:
        self._backend = backend
        self._catalog = catalog
        self._live: dict[Attempts, str] = {}
        self._stopping = False

    @asynccontextmanager
    async def run(
        self, model: str, requests: Sequence[TextRequest], timeout: float | None = None
    ) -> AsyncIterator[Chunks]:
        """The chunks of all requests as they come.

        `timeout`: seconds until all answers must be complete. Raises `GatewayError`.
        """

        def begin(tokenizer: TokenizerStub) -> list[Generation]:
            parts = Parts()
            return [Generation(tokenizer, request, timeout, parts) for request in requests]

        async with (
            self.watched(model, begin) as generations,
            aclosing(merged([each.chunks(number) for number, each in enumerate(generations)])) as chunks,
        ):
            yield chunks

    @asynccontextmanager
    async def watched(
        self, model: str, begin: Callable[[TokenizerStub], list[Call]]
    ) -> AsyncIterator[list[Call]]:
        """The calls that `begin` makes of the model's tokenizer service. They end when the model is lost.

        Raises `NotFound` or `Unavailable` for a model that is not available.
        """
        await self._catalog.find(model)
        if self._stopping:
            raise _stopping()
        calls = begin(self._backend.tokenizer(model))
        self._live.update(dict.fromkeys(calls, model))
        try:
            yield calls
        finally:
            for call in calls:
                del self._live[call]

    async def watch(self) -> None:
        """Until cancelled, end the requests that wait for a lost model: see `Catalog.lost`."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if not self._live:
                continue
            lost = await self._catalog.lost()
            for call, model in list(self._live.items()):
                if model in lost:
                    call.end(lost[model])

    def stop(self) -> None:
        """End all requests, and start no new ones."""
        self._stopping = True
        for call in self._live:
            call.end(_stopping())


def _stopping() -> GatewayError:
    return Unavailable("The gateway is stopping.")
