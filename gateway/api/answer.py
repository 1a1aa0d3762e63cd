"""What both generating APIs do with the chunks of an answer: count them, and lay them out as JSON.

An `Answer` is fed the chunks of all prompts of a request. It either streams (`events` for each
chunk, `last_events` at the end) or collects (`add` for each chunk, `body` at the end).
"""

import json
import time
from abc import ABC, abstractmethod
from typing import Any

from gateway.api.schema import GenerationBody
from gateway.http.sse import DONE, event
from proto.sampling_pb2 import LENGTH, NOT_FINISHED, STOP
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta

FINISH_REASONS = {NOT_FINISHED: None, STOP: "stop", LENGTH: "length"}

Json = dict[str, Any]

# C code without an object per call; ASCII only, so that no reader mistakes U+2028 for a line's end.
quoted = json.encoder.encode_basestring_ascii


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


class Choice:
    """One sequence of an answer that is collected."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.text: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[Json] = []
        self.finish_reason: str | None = None
        self.likelihood = 0.0
        """Sum of its tokens' log probabilities, if they were asked for."""


class Answer(ABC):
    """One request's answer. Choice `prompt * sequences + sequence` is that sequence of that prompt."""

    id_prefix: str
    object_name: str
    chunk_object_name: str

    def __init__(self, body: GenerationBody, request_id: str, prompts: int) -> None:
        self.ask = body
        self.created = int(time.time())
        self.id = self.id_prefix + request_id
        self.prompt_tokens: list[list[int]] = [[] for _ in range(prompts)]
        self._plain = body.wanted_logprobs is None and not body.return_token_ids
        """Nothing but text is wanted of the stream."""
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._choices = [Choice(index) for index in range(prompts * body.sequences)]

    def events(self, prompt: int, chunk: TextChunk) -> str:
        """The server-sent events that a chunk of the answer to prompt `prompt` is; "" if it is none."""
        if chunk.HasField("prompt"):
            self._note(prompt, chunk.prompt)
        first, events = prompt * self.ask.n, ""
        for delta in chunk.deltas[:]:
            self._completion_tokens += len(delta.token_ids)
            events += self._delta_events(first + delta.index, delta)
        return events

    def last_events(self) -> str:
        """What follows the last chunk: the usage, if it was asked for, and the end mark."""
        if not self.ask.include_usage:
            return DONE
        usage = self._head(self.chunk_object_name) | {"choices": [], "usage": self._usage()}
        return event(compact(usage)) + DONE

    def add(self, prompt: int, chunk: TextChunk) -> None:
        """Take in a chunk of the answer to prompt `prompt`."""
        if chunk.HasField("prompt"):
            self._note(prompt, chunk.prompt)
        for delta in chunk.deltas:
            self._completion_tokens += len(delta.token_ids)
            choice = self._choices[prompt * self.ask.sequences + delta.index]
            choice.text.append(delta.text)
            choice.token_ids.extend(delta.token_ids)
            choice.likelihood += sum(token.logprob for token in delta.logprobs)
            choice.finish_reason = FINISH_REASONS[delta.finish_reason]
            if self.ask.wanted_logprobs is not None and delta.logprobs:
                choice.logprobs.append(self._logprobs(choice.index, delta))

    def body(self) -> str:
        """The collected answer as one object."""
        choices = [self._choice(choice) for choice in self._given()]
        return compact(self._head(self.object_name) | {"choices": choices, "usage": self._usage()})

    def _given(self) -> list[Choice]:
        """The choices that the client gets: of each prompt's, the `n` whose tokens were the likeliest."""
        n, sequences = self.ask.n, self.ask.sequences
        if sequences == n:
            return self._choices
        given = []
        for first in range(0, len(self._choices), sequences):
            ranked = sorted(self._choices[first : first + sequences], key=_mean_likelihood, reverse=True)
            given += ranked[:n]
        for index, choice in enumerate(given):
            choice.index = index
        return given

    @abstractmethod
    def _delta_events(self, index: int, delta: TextDelta) -> str:
        """The events for what choice `index` gained."""

    @abstractmethod
    def _choice(self, choice: Choice) -> Json:
        """The object of a choice that is complete."""

    @abstractmethod
    def _logprobs(self, index: int, delta: TextDelta) -> Json:
        """The log probabilities of the tokens that choice `index` gained."""

    def _note(self, prompt: int, facts: PromptInfo) -> None:
        self.prompt_tokens[prompt] = list(facts.token_ids)
        self._cached_tokens += facts.cached_tokens

    def _head(self, object_name: str) -> Json:
        return {"id": self.id, "object": object_name, "created": self.created, "model": self.ask.model}

    def _usage(self) -> Json:
        prompt_tokens = sum(len(tokens) for tokens in self.prompt_tokens)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }

    def _around_choices(self) -> tuple[str, str]:
        """What stands before and after the choices in every event of the stream."""
        before = "data: " + compact(self._head(self.chunk_object_name))[:-1] + ',"choices":['
        after = '],"usage":null}' if self.ask.include_usage else "]}"
        return before, after + "\n\n"


def _mean_likelihood(choice: Choice) -> float:
    return choice.likelihood / max(1, len(choice.token_ids))
