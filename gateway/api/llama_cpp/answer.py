"""Answers in the shape of llama.cpp's server."""

import time
from collections.abc import Sequence
from typing import Any

from gateway.api.common.answers import Json, compact
from gateway.api.generation.answer import Answer
from gateway.api.openai.chat import ChatAnswer
from gateway.api.openai.completions import CompletionAnswer
from gateway.http.sse import event
from proto.tokenizer_pb2 import TextChunk


class LlamaAnswer(Answer):
    """Lays out an answer with one choice, of which another class makes the text."""

    def __init__(
        self, wanted: Sequence[str], silent: bool, context: int, body: Any, request_id: str, prompts: int
    ) -> None:
        """`wanted`: paths of the fields that it has alone; none: it has all. `silent`: the one token that is
        generated is left out. `context`: tokens of prompt and answer together, at most."""
        super().__init__(body, request_id, prompts)
        self._context, self._silent = context, silent
        self._fields = {path: path.split("/") for path in wanted}
        self._asked_at = time.monotonic()
        self._first_at = 0.0
        """When the first token came; 0: none has."""

    def events(self, prompt: int, chunk: TextChunk) -> str:
        self.add(prompt, chunk)
        text = "" if self._silent else "".join(delta.text for delta in chunk.deltas)
        if not text:
            return ""
        return event(compact(self._chosen({"index": 0, "content": text, "stop": False})))

    def add(self, prompt: int, chunk: TextChunk) -> None:
        if chunk.deltas and not self._first_at:
            self._first_at = time.monotonic()
        super().add(prompt, chunk)

    def last_events(self) -> str:
        return event(compact(self._whole("")))

    def body(self) -> str:
        return compact(self._whole("" if self._silent else "".join(self._choices[0].text)))

    def _whole(self, text: str) -> Json:
        (choice,) = self._choices
        word = choice.stop_reason if isinstance(choice.stop_reason, str) else ""
        ended = "limit" if choice.finish_reason == "length" else "word" if word else "eos"
        tokens = 0 if self._silent else self._completion_tokens
        return self._chosen(
            {
                "index": 0,
                "content": text,
                "stop": True,
                "model": self.request.model,
                "tokens_predicted": tokens,
                "tokens_evaluated": self.prompt_tokens[0],
                "tokens_cached": self._cached_tokens,
                "truncated": False,
                "stop_type": ended,
                "stopping_word": word,
                "generation_settings": {"n_ctx": self._context},
                "timings": self._timings(tokens),
            }
        )

    def _timings(self, tokens: int) -> Json:
        now = time.monotonic()
        first = self._first_at or now
        return {
            **_timing("prompt", self.prompt_tokens[0] - self._cached_tokens, first - self._asked_at),
            **_timing("predicted", tokens, now - first),
        }

    def _chosen(self, fields: Json) -> Json:
        """The fields that the client wants."""
        if not self._fields:
            return fields
        found: Json = {}
        for path, names in self._fields.items():
            value: object = fields
            for name in names:
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                found[path] = value
        return found


class LlamaInfillAnswer(LlamaAnswer, ChatAnswer):
    """An answer of /infill, whose text comes as that of a chat."""


class LlamaCompletionAnswer(LlamaAnswer, CompletionAnswer):
    """An answer of /completion."""


def _timing(name: str, count: int, seconds: float) -> Json:
    """`count`: tokens that took these `seconds`."""
    return {
        f"{name}_n": count,
        f"{name}_ms": seconds * 1000,
        f"{name}_per_token_ms": seconds * 1000 / max(1, count),
        f"{name}_per_second": count / max(seconds, 1e-6),
    }
