"""Generating the answer to a prompt, through the death of whatever process works on it.

The gateway remembers what it was given; when a call's server dies, it calls again with that, and
the next tokenizer process goes on from there.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import grpc

from gateway.backend import Backend
from gateway.catalog import Catalog
from gateway.errors import GatewayError, ServerFault, Unavailable, from_rpc
from gateway.merge import merged
from ops.telemetry import outgoing
from proto.rpc import Resumption
from proto.sampling_pb2 import NOT_FINISHED
from proto.tokenizer_pb2 import TextChunk, TextRequest, TextSoFar
from proto.tokenizer_pb2_grpc import TokenizerStub

WATCH_SECONDS = 5.0


@dataclass
class _Sequence:
    """What one sequence has delivered."""

    token_ids: list[int] = field(default_factory=list)
    text_length: int = 0
    finished: bool = False


class Generation:
    """One prompt's answer: as many calls of the tokenizer service as it takes."""

    def __init__(self, tokenizer: TokenizerStub, request: TextRequest, timeout: float | None = None) -> None:
        """`timeout`: seconds from now in which the answer is to be complete."""
        self.request = request
        self._due = None if timeout is None else time.monotonic() + timeout
        self._tokenizer = tokenizer
        self._sequences = [_Sequence() for _ in range(request.n)]
        self._told_prompt = False
        self._call: grpc.aio.UnaryStreamCall[TextRequest, TextChunk] | None = None
        self._ended_by: GatewayError | None = None

    async def chunks(self) -> AsyncGenerator[TextChunk, None]:
        """What the tokenizer service sends, as if no process had died. Raises `GatewayError`."""
        resumption = Resumption()
        while self._ended_by is None:
            metadata = (*outgoing(), *resumption.metadata())
            left = None if self._due is None else max(0.001, self._due - time.monotonic())
            call = self._tokenizer.Generate(
                self._with_so_far(), metadata=metadata, timeout=left, wait_for_ready=True
            )
            self._call = call
            try:
                async for chunk in call:
                    resumption.progressed()
                    self._remember(chunk)
                    yield chunk
                if not self._finished():
                    raise ServerFault("The answer ended before it was complete.")
                return
            except grpc.aio.AioRpcError as error:
                if self._finished():
                    return
                if self._ended_by is None:
                    self._retry_or_raise(resumption, error)
            except asyncio.CancelledError:
                if self._ended_by is None:
                    raise
            finally:
                call.cancel()
        raise self._ended_by

    def end(self, error: GatewayError) -> None:
        """End it from outside: `chunks` raises `error`."""
        self._ended_by = error
        if self._call is not None:
            self._call.cancel()

    def _finished(self) -> bool:
        return all(sequence.finished for sequence in self._sequences)

    def _remember(self, chunk: TextChunk) -> None:
        if chunk.HasField("prompt"):
            if self._told_prompt:
                chunk.ClearField("prompt")
            self._told_prompt = True
        for delta in chunk.deltas:
            sequence = self._sequences[delta.index]
            sequence.token_ids.extend(delta.token_ids)
            sequence.text_length += len(delta.text)
            sequence.finished |= delta.finish_reason != NOT_FINISHED

    def _with_so_far(self) -> TextRequest:
        """The request, with what has been delivered if anything has."""
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

    def _retry_or_raise(self, resumption: Resumption, error: grpc.aio.AioRpcError) -> None:
        try:
            resumption.retry_or_raise(error)
        except grpc.aio.AioRpcError:
            names = {"prompt": "messages"} if self.request.HasField("chat") else {}
            raise from_rpc(error, names) from error


class Generator:
    """Runs generations, and ends those whose model is not coming back."""

    def __init__(self, backend: Backend, catalog: Catalog) -> None:
        self._backend = backend
        self._catalog = catalog
        self._live: dict[Generation, str] = {}
        self._stopping = False

    async def run(
        self, model: str, requests: Sequence[TextRequest], timeout: float | None = None
    ) -> AsyncGenerator[tuple[int, TextChunk], None]:
        """The chunks of all requests, each with its request's index, as they come.

        `timeout`: seconds in which they are to be complete.

        Raises `NotFound` or `Unavailable` for a model that is not there, else what a generation raises.
        """
        await self._catalog.find(model)
        if self._stopping:
            raise _stopping()
        tokenizer = self._backend.tokenizer(model)
        generations = [Generation(tokenizer, request, timeout) for request in requests]
        self._live.update(dict.fromkeys(generations, model))
        try:
            chunks = merged([generation.chunks() for generation in generations])
            async with aclosing(chunks):
                async for numbered in chunks:
                    yield numbered
        finally:
            for generation in generations:
                del self._live[generation]

    async def watch(self) -> None:
        """Until cancelled, end what waits for a model that has been away for too long."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if not self._live:
                continue
            lost = await self._catalog.lost()
            for generation, model in list(self._live.items()):
                if model in lost:
                    generation.end(lost[model])

    def stop(self) -> None:
        """End all that runs, and begin nothing new."""
        self._stopping = True
        for generation in self._live:
            generation.end(_stopping())


def _stopping() -> GatewayError:
    return Unavailable("The gateway is stopping.")
