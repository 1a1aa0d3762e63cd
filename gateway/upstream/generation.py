"""Generating the answer to a prompt, even if processes die meanwhile: see `attempts.py`."""

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field

import grpc

from gateway.errors import BadRequest, ServerFault
from gateway.upstream.answer_span import AnswerSpan
from gateway.upstream.attempts import Attempts, Parts
from gateway.upstream.measures import AnswerTimes, Measures
from ops.runtime.telemetry import sampled_trace
from proto.parts import Joiner
from proto.rpc import Resumption
from proto.tokenizer_pb2 import TextChunk, TextRequest, TextSoFar
from proto.tokenizer_pb2_grpc import TokenizerStub

logger = logging.getLogger(__name__)

Chunks = AsyncGenerator[tuple[int, TextChunk], None]
"""Chunks for one or more prompts, each with its prompt's number."""

Shorten = Callable[[TextRequest], bool]
"""Leaves out a part of a conversation that is too long for the context. False: there is none to leave out."""


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
        measures: Measures,
        timeout: float | None = None,
        parts: Parts | None = None,
        model: str = "",
        shorten: Shorten | None = None,
    ) -> None:
        """`model`: under which it is known. `shorten`: see `Generator.run`. The others: see `Attempts`."""
        super().__init__(timeout, parts)
        self._traced = AnswerSpan(model, request, self.span)
        self.span = self._traced.span
        self._times = AnswerTimes(measures, request, sampled_trace(self.span))
        self.request = request
        self._tokenizer = tokenizer
        self._sequences = [_Sequence() for _ in range(request.n)]
        self._prompt_seen = False
        self._scores = request.sampling.HasField("prompt_logprobs")
        self._names = {"prompt": "messages"} if request.HasField("chat") else {}
        self._shorten = shorten

    def close(self) -> None:
        """See `Attempts.close`."""
        self._traced.end(self._times)

    async def chunks(self, number: int = 0) -> Chunks:
        """The chunks that the tokenizer service sends, as if no process had died. Raises `GatewayError`.

        `number`: this prompt's number among the prompts of the request.
        """
        resumption = Resumption()
        with self._times:
            while self._ended_by is None and not self._finished:
                if self.images is not None:
                    await self._put_images(self.images)
                await self._go_on()  # the last to wait: a call that is paused does not begin
                request = self._with_so_far()
                self._times.call()
                whole = Joiner()
                async with self._attempt(self._tokenizer.Generate, request, resumption, self._names) as call:
                    async for part in call:
                        resumption.progressed()
                        if (chunk := whole.add(part)) is None:
                            continue
                        self._remember(chunk)
                        yield number, chunk
                    if not self._finished:
                        logger.error("request %s: the answer ended before its end", request.request_id)
                        raise ServerFault(request.request_id)
            if self._ended_by is not None and not self._finished:
                raise self._ended_by
        if self.leave is not None:
            self.leave()

    @property
    def _finished(self) -> bool:
        return all(sequence.finished for sequence in self._sequences)

    async def _retry_or_raise(
        self, request_id: str, resumption: Resumption, error: grpc.aio.AioRpcError, names: Mapping[str, str]
    ) -> None:
        """Another call may also succeed with less of the conversation, if that is allowed."""
        try:
            await super()._retry_or_raise(request_id, resumption, error, names)
        except BadRequest as refusal:
            too_long = refusal.error_code == "context_length_exceeded" and not self._prompt_seen
            if not (too_long and self._shorten is not None and self._shorten(self.request)):
                raise
            self._times.refused()

    def _remember(self, chunk: TextChunk) -> None:
        if chunk.HasField("prompt"):
            self._traced.prompt(chunk.prompt)
            self.request.fingerprint = chunk.prompt.fingerprint
            if self._prompt_seen:
                chunk.ClearField("prompt")
            else:
                self._times.prompt(chunk.prompt.tokens)
            self._prompt_seen = True
        if self._scores:
            self.request.scored_tokens += len(chunk.prompt_logprobs)
        for delta in chunk.deltas[:]:
            index, tokens, reason = delta.index, delta.token_ids[:], delta.finish_reason
            sequence = self._sequences[index]
            sequence.token_ids += tokens
            self._times.tokens(index, len(tokens), reason)
            sequence.text_length += len(delta.text)
            if reason:
                sequence.finished = True
                self._traced.finished(index, reason)

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
