"""Ollama's API: /api/chat, /api/generate, /api/embed, /api/embeddings, /api/tags, /api/ps, /api/show and
/api/version.

A request becomes one of the chat API (`schema.py`), and the answer to that is written in Ollama's
shape. A stream is a JSON object on each line.
"""

import hashlib
import json
import time
from abc import abstractmethod
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import Json, compact
from gateway.api.common.body import made_of, read_body
from gateway.api.generation.logprobs import chat_logprobs
from gateway.api.infill.endpoints import infill_requests
from gateway.api.ollama.answer_schema import (
    OllamaChatAnswer,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaError,
    OllamaGenerated,
    OllamaModels,
    OllamaShown,
    OllamaVersion,
)
from gateway.api.ollama.schema import (
    EmbedBody,
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    PromptEmbedBody,
    ShowBody,
)
from gateway.api.openai.chat import ChatAnswer
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.respond import respond
from gateway.api.openai.translate import chat_requests
from gateway.api.parsers.calls import Call
from gateway.api.parsers.splitter import Pieces
from gateway.api.pooling.embeddings import embedded, in_turns, numbers
from gateway.errors import NotFound, Unauthorized
from gateway.http.caller import Caller
from gateway.http.openapi import getting, posting
from gateway.upstream.catalog import Catalog, Model
from gateway.upstream.generation import Shorten
from gateway.upstream.generator import Generator
from proto.sampling_pb2 import LENGTH, NOT_FINISHED
from proto.tokenizer_pb2 import Infill, TextChunk, TextRequest

LIKE = "0.14.0"
"""The version of Ollama whose API this is like. Clients refuse servers that seem too old."""
_DETAILS = {
    "parent_model": "",
    "format": "safetensors",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}


def router(generator: Generator, catalog: Catalog) -> APIRouter:
    routes = APIRouter()
    _add_about(routes, catalog)
    _add_answers(routes, generator, catalog)
    _add_embed(routes, generator, catalog)
    return routes


def _add_about(routes: APIRouter, catalog: Catalog) -> None:
    @routes.get(
        "/api/version",
        response_model=None,
        openapi_extra=getting(OllamaVersion, Unauthorized, error=OllamaError),
    )
    async def ollama_version() -> dict[str, str]:
        """The version of Ollama whose API this is like."""
        return {"version": LIKE}

    @routes.get(
        "/api/tags", response_model=None, openapi_extra=getting(OllamaModels, Unauthorized, error=OllamaError)
    )
    @routes.get(
        "/api/ps", response_model=None, openapi_extra=getting(OllamaModels, Unauthorized, error=OllamaError)
    )
    async def ollama_models() -> dict[str, Any]:
        """The models that are available, and their LoRA adapters."""
        there = [model for model in await catalog.models() if not model.missing]
        names = ((model, name) for model in there for name in (model.name, *catalog.adapters_of(model)))
        return {"models": [_entry(model, name) for model, name in names]}

    @routes.post("/api/show", openapi_extra=posting(ShowBody, OllamaShown, error=OllamaError))
    async def ollama_show(request: Request) -> Response:
        """One model."""
        body = await read_body(request, ShowBody)
        model, _ = await _found(catalog, body.asked)
        return Response(compact(_shown(model)), media_type="application/json")


def _add_answers(routes: APIRouter, generator: Generator, catalog: Catalog) -> None:
    async def answered(
        request: Request, body: OllamaBody, kind: type["Lines"], shorten: Shorten | None = None
    ) -> Response:
        model = await _name(catalog, body.model)
        if body.loads:
            end = {"model": model, "created_at": _now(), **kind.said(Pieces())}
            loaded = compact(end | {"done": True, "done_reason": "load"})
            return Response(loaded, media_type="application/json")
        requests_of = chat_requests
        if isinstance(body, OllamaGenerateBody) and body.suffix:
            requests_of = partial(infill_requests, Infill(before=body.prompt, after=body.suffix))
        elif isinstance(body, OllamaGenerateBody) and body.raw:
            requests_of = partial(_raw_requests, body.prompt)
        asked = await made_of(request, partial(body.chat, model))
        return await respond(request, generator, asked, requests_of, kind, shorten)

    @routes.post(
        "/api/chat", openapi_extra=posting(OllamaChatBody, OllamaChatAnswer, lines=True, error=OllamaError)
    )
    async def ollama_chat(request: Request) -> Response:
        """Answer a conversation, in the shape of Ollama's API."""
        body = await read_body(request, OllamaChatBody)
        return await answered(request, body, ChatLines, _shorten if body.truncate else None)

    @routes.post(
        "/api/generate",
        openapi_extra=posting(OllamaGenerateBody, OllamaGenerated, lines=True, error=OllamaError),
    )
    async def ollama_generate(request: Request) -> Response:
        """Answer one prompt, in the shape of Ollama's API."""
        return await answered(request, await read_body(request, OllamaGenerateBody), GeneratedLines)


def _add_embed(routes: APIRouter, generator: Generator, catalog: Catalog) -> None:
    @routes.post("/api/embed", openapi_extra=posting(EmbedBody, OllamaEmbeddings, error=OllamaError))
    async def ollama_embed(request: Request) -> Response:
        """Embed one text or several, in the shape of Ollama's API."""
        begun = time.monotonic_ns()
        body = await read_body(request, EmbedBody)
        model = await _name(catalog, body.model)
        found = [] if body.loads else await embedded(request, generator, body.embedding(model))
        vectors = ",".join(await in_turns(numbers, (one.embedding for one in found)))
        rest = {
            "model": model,
            "total_duration": time.monotonic_ns() - begun,
            "load_duration": 0,
            "prompt_eval_count": sum(one.tokens for one in found),
        }
        answer = f'{{"embeddings":[{vectors}],{compact(rest)[1:]}'
        return Response(answer, media_type="application/json")

    @routes.post(
        "/api/embeddings", openapi_extra=posting(PromptEmbedBody, OllamaEmbedding, error=OllamaError)
    )
    async def ollama_embeddings(request: Request) -> Response:
        """Embed one text, in the shape that Ollama's API had earlier."""
        body = await read_body(request, PromptEmbedBody)
        model = await _name(catalog, body.model)
        vector = "[]"
        if not body.loads:
            (found,) = await embedded(request, generator, body.embedding(model))
            vector = numbers(found.embedding)
        return Response(f'{{"embedding":{vector}}}', media_type="application/json")


class Lines(ChatAnswer):
    """An answer in the shape of Ollama's API: a JSON object on each line. It has one choice."""

    stream_type = "application/x-ndjson"

    def __init__(self, body: ChatBody, request_id: str, prompts: int) -> None:
        super().__init__(body, request_id, prompts)
        self._asked_at = time.monotonic_ns()
        self._first_at = 0
        """When the first token came; 0: none has."""
        self._ended = "stop"
        self._held_logprobs: list[Json] = []
        """Of tokens whose text no line has had yet."""

    @staticmethod
    @abstractmethod
    def said(pieces: Pieces, calls: Json | None = None) -> Json:
        """The fields for what the model says. `calls`: those of its calls, if there are any."""

    def events(self, prompt: int, chunk: TextChunk) -> str:
        if chunk.HasField("prompt"):
            self._note(prompt, chunk.prompt)
        lines = ""
        for delta in chunk.deltas:
            self._count(len(delta.token_ids), delta.finish_reason)
            if self.request.wanted_logprobs is not None:
                self._held_logprobs += chat_logprobs(delta.logprobs)["content"]
            if not self._parts:
                pieces, calls = Pieces(content=delta.text), None
            else:
                number = len(self._parts[0].calls)
                pieces = self._take(0, delta)
                calls = self._calls(number)
            if pieces.content or pieces.reasoning or calls:
                said = self.said(pieces, calls) | self._logprobs_so_far()
                lines += compact(self._line() | said | {"done": False}) + "\n"
        return lines

    def last_events(self) -> str:
        return compact(self._line() | self.said(Pieces()) | self._logprobs_so_far() | self._end()) + "\n"

    def keep_alive(self) -> str:
        # Some clients read an empty line as JSON.
        return compact(self._line() | self.said(Pieces()) | {"done": False}) + "\n"

    def add(self, prompt: int, chunk: TextChunk) -> None:
        super().add(prompt, chunk)
        for delta in chunk.deltas:
            self._count(0, delta.finish_reason)

    def body(self) -> str:
        (choice,) = self._choices
        pieces, calls = Pieces(content="".join(choice.text)), None
        if self._parts:
            parts = self._parts[0]
            pieces, calls = Pieces("".join(parts.reasoning), "".join(parts.content)), self._calls(0)
        self._held_logprobs = [entry for part in choice.logprobs for entry in part["content"]]
        return compact(self._line() | self.said(pieces, calls) | self._logprobs_so_far() | self._end())

    def _count(self, tokens: int, reason: int) -> None:
        self._first_at = self._first_at or time.monotonic_ns()
        self._completion_tokens += tokens
        if reason != NOT_FINISHED:
            self._ended = "length" if reason == LENGTH else "stop"

    def _logprobs_so_far(self) -> Json:
        """The field of the log probabilities that no line has had yet; nothing if there are none."""
        held, self._held_logprobs = self._held_logprobs, []
        return {"logprobs": held} if held else {}

    def _calls(self, begin: int) -> Json | None:
        """The field of the calls from number `begin` on; None if there are none."""
        calls: list[Call] = self._parts[0].calls[begin:]
        made = [
            {
                "id": self._call(0, number, call)["id"],
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for number, call in enumerate(calls, begin)
        ]
        return {"tool_calls": made} if made else None

    def _line(self) -> Json:
        return {"model": self.request.model, "created_at": _now()}

    def _end(self) -> Json:
        now = time.monotonic_ns()
        first = self._first_at or now
        return {
            "done": True,
            "done_reason": self._ended,
            "total_duration": now - self._asked_at,
            "load_duration": 0,
            "prompt_eval_count": self.prompt_tokens[0],
            "prompt_eval_duration": first - self._asked_at,
            "eval_count": self._completion_tokens,
            "eval_duration": now - first,
        }


class ChatLines(Lines):
    """The answer of /api/chat."""

    @staticmethod
    def said(pieces: Pieces, calls: Json | None = None) -> Json:
        thinking = {"thinking": pieces.reasoning} if pieces.reasoning else {}
        return {"message": {"role": "assistant", "content": pieces.content, **thinking, **(calls or {})}}


class GeneratedLines(Lines):
    """The answer of /api/generate, which offers no functions."""

    @staticmethod
    def said(pieces: Pieces, calls: Json | None = None) -> Json:
        thinking = {"thinking": pieces.reasoning} if pieces.reasoning else {}
        return {"response": pieces.content, **thinking}


def _raw_requests(prompt: str, body: ChatBody, request_id: str, caller: Caller) -> list[TextRequest]:
    """Of a body whose conversation does not count: the prompt is taken as it is."""
    (asked,) = chat_requests(body, request_id, caller)
    asked.text = prompt
    return [asked]


def _shorten(request: TextRequest) -> bool:
    """Leave out what comes before the newer half of the user's messages, but for system messages.

    Half at a time: an answer needs room, too. What is left begins with a user's message, as many templates
    want it, and no result is without its call. The user's last message stays, and all that follows it.
    """
    messages = request.chat.messages
    asked = [place for place, message in enumerate(messages) if message.role == "user"]
    begin = asked[len(asked) // 2] if asked else 0
    left_out = [place for place in range(begin) if messages[place].role != "system"]
    for place in reversed(left_out):
        del messages[place]
    return bool(left_out)


async def _found(catalog: Catalog, name: str) -> tuple[Model, str]:
    """The model `name`, which may have the tag that Ollama's clients add; and the name without it.

    Raises `GatewayError`.
    """
    try:
        return await catalog.find(name), name
    except NotFound:
        plain = name.removesuffix(":latest")
        if plain == name:
            raise
        return await catalog.find(plain), plain


async def _name(catalog: Catalog, name: str) -> str:
    """The own name of the model or adapter `name`, as for `_found`."""
    model, plain = await _found(catalog, name)
    return catalog.adapter_of(plain) or model.name


def _entry(model: Model, name: str) -> Json:
    return {
        "name": name,
        "model": name,
        "modified_at": _time(model.created),
        "size": 0,
        "digest": hashlib.sha256(name.encode()).hexdigest(),
        "details": _DETAILS,
    }


def _shown(model: Model) -> Json:
    return {
        "modelfile": f"FROM {model.name}",
        "parameters": "\n".join(f"{name} {value}" for name, value in model.defaults.items()),
        "template": "",
        "modified_at": _time(model.created),
        "details": _DETAILS,
        "model_info": {"general.architecture": "quire", "quire.context_length": model.max_model_len},
        "capabilities": _capabilities(model),
    }


def _capabilities(model: Model) -> list[str]:
    if not model.generates:
        return [] if model.num_labels else ["embedding"]
    can = {"tools": model.calls, "thinking": model.thoughts, "vision": model.images}
    return ["completion", *(name for name, able in can.items() if able)]


def _now() -> str:
    return _time(time.time())


def _time(seconds: float) -> str:
    """As in 2026-01-31T12:00:00.000000Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
