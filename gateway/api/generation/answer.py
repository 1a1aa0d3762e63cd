"""An answer of either generating API: counts the tokens of its chunks, and lays them out as JSON.

An `Answer` takes the chunks of all prompts of a request. It either streams them (`events` for each chunk,
`last_events` at the end) or collects them (`add` for each chunk, `body` at the end).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from gateway.api.common.answers import Json, compact
from gateway.api.common.fields import alternatives
from gateway.api.generation.logprobs import prompt_logprobs
from gateway.api.generation.schema import GenerationBody
from gateway.errors import GatewayError
from gateway.http.sse import COMMENT, DONE, event
from proto.sampling_pb2 import LENGTH, NOT_FINISHED, STOP, PredictedTokens
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta, TokenText

FINISH_REASONS = {NOT_FINISHED: None, STOP: "stop", LENGTH: "length"}


_NO_USAGE = '],"usage":null}\n\n'
"""The end of an event whose stream ends with the usage. A text within JSON has no such quotes."""


class Choice:
    """One sequence of a collected answer."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.text: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[Json] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.logprob = 0.0
        """Sum of its tokens' log probabilities; 0 if they were not asked for."""


class Answer(ABC):
    """The answer to one request. Sequence s of prompt p is choice p * sequences + s."""

    id_prefix: str
    object_name: str
    chunk_object_name: str
    stream_type: ClassVar[str] = "text/event-stream"
    """Media type of a streamed answer."""

    def __init__(self, body: GenerationBody, request_id: str, prompts: int) -> None:
        self.request = body
        self.created = int(time.time())
        self.id = self.id_prefix + request_id
        self.prompt_tokens = [0] * prompts
        self.prompt_token_ids: list[list[int]] = [[] for _ in range(prompts)]
        self._plain = body.wanted_logprobs is None and not body.return_token_ids
        """The stream's events carry text alone: neither log probabilities nor token ids."""
        self._continuous = body.continuous_usage
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._accepted = self._rejected = 0
        """Tokens of the client's prediction."""
        self._prompt_logprobs: list[list[Json | None]] = [[] for _ in range(prompts)]
        self._newest: dict[int, int] = {}
        """The newest token of each choice of a stream."""
        self._choices = [Choice(index) for index in range(prompts * body.sequences)]

    def events(self, prompt: int, chunk: TextChunk) -> str:
        """The server-sent events for a chunk of the answer to prompt number `prompt`; "" for none."""
        if chunk.HasField("prompt"):
            self._note(prompt, chunk.prompt)
        if chunk.HasField("predicted"):
            self._note_predicted(chunk.predicted)
        first, events = prompt * self.request.n, ""
        for delta in chunk.deltas[:]:
            if delta.token_ids:
                self._completion_tokens += len(delta.token_ids)
                self._newest[first + delta.index] = delta.token_ids[-1]
            events += self._delta_events(first + delta.index, delta)
        if self._continuous and events:
            events = events.replace(_NO_USAGE, f'],"usage":{compact(self._usage())}}}\n\n')
        return events

    def tokens(self) -> int:
        """Tokens so far, of prompts and answers."""
        return sum(self.prompt_tokens) + self._completion_tokens

    def last_events(self) -> str:
        """The events after the last chunk: the usage, if the client asked for it, and the end mark."""
        if not self.request.include_usage:
            return DONE
        usage = self._head(self.chunk_object_name) | {"choices": [], "usage": self._usage()}
        return event(compact(usage)) + DONE

    async def keep(self) -> None:
        """All chunks have come: store the answer, if that is asked for. Raises `GatewayError`."""
        return None

    def failed(self, error: GatewayError) -> str | None:
        """The end of a stream that fails; None: an error as the path has it, of HTTP if nothing was sent."""
        return None

    def keep_alive(self) -> str:
        """What a stream sends where nothing else has come for a while."""
        return COMMENT

    def add(self, prompt: int, chunk: TextChunk) -> None:
        """Collect a chunk of the answer to prompt number `prompt`."""
        if chunk.HasField("prompt"):
            self._note(prompt, chunk.prompt)
        if chunk.HasField("predicted"):
            self._note_predicted(chunk.predicted)
        if chunk.prompt_logprobs:
            self._score(prompt, chunk.prompt_logprobs)
        for delta in chunk.deltas:
            self._completion_tokens += len(delta.token_ids)
            choice = self._choices[prompt * self.request.sequences + delta.index]
            choice.text.append(delta.text)
            choice.token_ids.extend(delta.token_ids)
            choice.logprob += sum(token.logprob for token in delta.logprobs)
            choice.finish_reason = FINISH_REASONS[delta.finish_reason]
            choice.stop_reason = self._stopped_by(delta, choice.token_ids[-1:])
            if self.request.wanted_logprobs is not None and delta.logprobs:
                choice.logprobs.append(self._logprobs(choice.index, delta))

    def body(self) -> str:
        """The collected answer as one object."""
        choices = [self._choice(choice) for choice in self._best()]
        fields = {"choices": choices, "usage": self._usage(), **self._more()}
        return compact(self._head(self.object_name) | fields)

    def _best(self) -> list[Choice]:
        """The choices that the client gets: for each prompt the `n` with the highest mean log probability."""
        n, sequences = self.request.n, self.request.sequences
        if sequences == n:
            return self._choices
        best = []
        for first in range(0, len(self._choices), sequences):
            ranked = sorted(self._choices[first : first + sequences], key=_mean_logprob, reverse=True)
            best += ranked[:n]
        for index, choice in enumerate(best):
            choice.index = index
        return best

    @abstractmethod
    def _delta_events(self, index: int, delta: TextDelta) -> str:
        """The events for the new text and tokens of choice number `index`."""

    @abstractmethod
    def _choice(self, choice: Choice) -> Json:
        """A complete choice as a JSON object."""

    @abstractmethod
    def _logprobs(self, index: int, delta: TextDelta) -> Json:
        """The log probabilities of the new tokens of choice number `index`, as a JSON object."""

    def _stopped_by(self, delta: TextDelta, newest: Sequence[int]) -> str | int | None:
        """The stop string or the stop token of the client's that has ended a choice, as vLLM tells it.

        `newest`: the choice's newest token, if it has any.
        """
        if delta.finish_reason != STOP:
            return None
        return delta.stop_string or next((one for one in newest if one in self.request.stop_token_ids), None)

    def _finished(self, index: int, delta: TextDelta, reason: str) -> str:
        """The fields of the last event of choice number `index` that say why it ended."""
        newest = [self._newest[index]] if index in self._newest else []
        return f'"finish_reason":"{reason}","stop_reason":{compact(self._stopped_by(delta, newest))}'

    def _score(self, prompt: int, tokens: Sequence[TokenText]) -> None:
        """Collect the next tokens of prompt number `prompt`, which have log probabilities."""
        if (wanted := alternatives(self.request.prompt_logprobs)) is not None:
            self._prompt_logprobs[prompt] += prompt_logprobs(tokens, wanted)

    def _of_prompt(self, prompt: int) -> Json:
        """The field with the log probabilities of prompt number `prompt`, if they were asked for."""
        asked = self.request.prompt_logprobs is not None
        return {"prompt_logprobs": self._prompt_logprobs[prompt]} if asked else {}

    def _more(self) -> Json:
        """Further fields of the collected answer."""
        return {}

    def _note(self, prompt: int, info: PromptInfo) -> None:
        self.prompt_tokens[prompt], self.prompt_token_ids[prompt] = info.tokens, list(info.token_ids)
        self._cached_tokens += info.cached_tokens

    def _note_predicted(self, predicted: PredictedTokens) -> None:
        self._accepted += predicted.accepted
        self._rejected += predicted.rejected

    def _head(self, object_name: str) -> Json:
        return {"id": self.id, "object": object_name, "created": self.created, "model": self.request.model}

    def _usage(self) -> Json:
        prompt_tokens = sum(self.prompt_tokens)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }

    def _around_choices(self) -> tuple[str, str]:
        """The text before and after the choices, the same in every event of the stream."""
        before = "data: " + compact(self._head(self.chunk_object_name))[:-1] + ',"choices":['
        return before, _NO_USAGE if self.request.include_usage else "]}\n\n"


def _mean_logprob(choice: Choice) -> float:
    return choice.logprob / max(1, len(choice.token_ids))
