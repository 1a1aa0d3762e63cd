"""POST /v1/fim/completions and /infill: texts with a gap, in the shapes of Mistral and llama.cpp.

A request becomes one of the chat API, whose conversation does not count.
"""

import time
from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import Json, compact
from gateway.api.common.body import made_of, read_body
from gateway.api.infill.schema import FimBody, InfillBody, Infilled
from gateway.api.openai.answer_schema import ChatCompletion, ChatCompletionChunk
from gateway.api.openai.chat import ChatAnswer
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.respond import respond
from gateway.api.openai.translate import chat_requests
from gateway.http.caller import Caller
from gateway.http.openapi import posting
from gateway.http.sse import event
from gateway.upstream.catalog import Catalog
from gateway.upstream.generator import Generator
from proto.tokenizer_pb2 import Infill, TextChunk, TextRequest


def router(generator: Generator, catalog: Catalog) -> APIRouter:
    routes = APIRouter()

    @routes.post(
        "/v1/fim/completions", openapi_extra=posting(FimBody, ChatCompletion, event=ChatCompletionChunk)
    )
    async def fill_in_the_middle(request: Request) -> Response:
        """Fill the gap between two texts, in the shape of Mistral's API."""
        asked = await read_body(request, FimBody)
        body = await made_of(request, asked.chat)
        return await respond(request, generator, body, partial(infill_requests, asked.gap()), ChatAnswer)

    @routes.post("/infill", openapi_extra=posting(InfillBody, Infilled, event=Infilled))
    async def infill(request: Request) -> Response:
        """Fill the gap between two texts, in the shape of llama.cpp's API."""
        asked = await read_body(request, InfillBody)
        context = (await catalog.find(asked.model)).max_model_len
        kind = partial(InfillAnswer, asked, context)
        body = await made_of(request, asked.chat)
        return await respond(request, generator, body, partial(infill_requests, asked.gap()), kind)

    return routes


def infill_requests(gap: Infill, body: ChatBody, request_id: str, caller: Caller) -> list[TextRequest]:
    """Of a body whose conversation does not count. Raises `BadRequest` as `chat_requests` does."""
    (asked,) = chat_requests(body, request_id, caller)
    asked.infill.CopyFrom(gap)
    return [asked]


class InfillAnswer(ChatAnswer):
    """An answer in the shape of llama.cpp's API. It has one choice."""

    def __init__(
        self, asked: InfillBody, context: int, body: ChatBody, request_id: str, prompts: int
    ) -> None:
        """`context`: tokens of prompt and answer together, at most."""
        super().__init__(body, request_id, prompts)
        self._context = context
        self._fields = {path: path.split("/") for path in asked.response_fields}
        self._silent = asked.n_predict == 0
        """The one token that is generated is left out."""
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


def _timing(name: str, count: int, seconds: float) -> Json:
    """`count`: tokens that took these `seconds`."""
    return {
        f"{name}_n": count,
        f"{name}_ms": seconds * 1000,
        f"{name}_per_token_ms": seconds * 1000 / max(1, count),
        f"{name}_per_second": count / max(seconds, 1e-6),
    }
