"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API.

A request becomes one of the chat API (`schema.py`), and the answer to that is written in Anthropic's
shape: blocks of text, thoughts and calls, each with an event for its beginning, its parts and its end.
"""

import json
from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.api.anthropic.answer_schema import EVENTS, AnthropicError, Count, MessageAnswer
from gateway.api.anthropic.schema import CountBody, MessagesBody
from gateway.api.anthropic.volatile import Volatile
from gateway.api.common.answers import Json, compact
from gateway.api.common.body import made_of, read_body
from gateway.api.generation.answer import Choice
from gateway.api.openai.chat import ChatAnswer
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.respond import respond
from gateway.api.openai.tokenize import prompt_of
from gateway.api.openai.translate import chat_requests
from gateway.api.parsers.calls import Call
from gateway.api.parsers.splitter import Pieces
from gateway.http.openapi import posting
from gateway.http.sse import named_event
from gateway.upstream.generator import Generator
from proto.sampling_pb2 import LENGTH, NOT_FINISHED
from proto.tokenizer_pb2 import TextChunk, TextDelta

SIGNATURE = "quire"
"""Of every thought. Nothing is signed, but without a signature clients leave a thought out of what they send
back, or make it the answer's text: Copilot, Vercel's AI SDK, Pi."""


def router(generator: Generator, volatile: Volatile) -> APIRouter:
    """`volatile`: what becomes of the line of a system prompt that each request has anew."""
    routes = APIRouter()

    @routes.post(
        "/v1/messages",
        openapi_extra=posting(MessagesBody, MessageAnswer, events=EVENTS, error=AnthropicError),
    )
    async def create_message(request: Request) -> Response:
        """Answer a conversation, in the shape of Anthropic's API."""
        asked = await read_body(request, MessagesBody)
        kind = MessagesAnswer if asked.max_tokens else NoAnswer
        body = await made_of(request, partial(asked.chat, volatile))
        return await respond(request, generator, body, chat_requests, kind)

    @routes.post("/v1/messages/count_tokens", openapi_extra=posting(CountBody, Count, error=AnthropicError))
    async def count_tokens(request: Request) -> Response:
        """How many tokens a conversation has."""
        asked = await read_body(request, CountBody)
        body = await made_of(request, partial(asked.chat, volatile))
        found = await prompt_of(request, generator, body)
        return Response(compact({"input_tokens": len(found.token_ids)}), media_type="application/json")

    return routes


class MessagesAnswer(ChatAnswer):
    """An answer in the shape of Anthropic's API. It has one choice."""

    id_prefix = "msg_"

    def __init__(self, body: ChatBody, request_id: str, prompts: int) -> None:
        super().__init__(body, request_id, prompts)
        self._ended: str | None = None
        self._stop_string: str | None = None
        self._started = False
        self._open = ""
        """Type of the block that the stream is in; empty if it is in none."""
        self._blocks = 0
        """Blocks that the stream has begun."""
        self._calls = 0
        """Calls among them."""

    def events(self, prompt: int, chunk: TextChunk) -> str:
        if chunk.HasField("prompt"):
            self._note(prompt, chunk.prompt)
        events = "" if self._started else self._start()
        for delta in chunk.deltas:
            self._completion_tokens += len(delta.token_ids)
            self._end_with(delta)
            events += self._piece_events(self._pieces(0, delta))
        return events

    def last_events(self) -> str:
        stopped = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_string}
        end = {"type": "message_delta", "delta": stopped, "usage": self._usage()}
        return self._close() + _event(end) + _event({"type": "message_stop"})

    def keep_alive(self) -> str:
        return _event({"type": "ping"})

    def add(self, prompt: int, chunk: TextChunk) -> None:
        super().add(prompt, chunk)
        for delta in chunk.deltas:
            self._end_with(delta)

    def body(self) -> str:
        (choice,) = self._choices
        stopped = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_string}
        return compact(self._message_of(self._content(choice)) | stopped)

    def _message_of(self, content: list[Json]) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.request.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def _content(self, choice: Choice) -> list[Json]:
        """The blocks of the collected answer. None of them is empty."""
        if not self._parts:
            text = "".join(choice.text)
            return [{"type": "text", "text": text}] if text else []
        parts = self._parts[0]
        content: list[Json] = []
        if thought := "".join(parts.reasoning):
            content.append({"type": "thinking", "thinking": thought, "signature": SIGNATURE})
        if text := "".join(parts.content):
            content.append({"type": "text", "text": text})
        for number, call in enumerate(parts.calls):
            content.append(self._tool_use(number, call) | {"input": json.loads(call.arguments)})
        return content

    def _tool_use(self, number: int, call: Call) -> Json:
        """The beginning of a block for call number `number`, whose arguments come later."""
        return {"type": "tool_use", "id": self._call(0, number, call)["id"], "name": call.name, "input": {}}

    def _usage(self) -> Json:
        # Anthropic counts a token of the prompt once: as input, or as read from the cache.
        return {
            "input_tokens": self.prompt_tokens[0] - self._cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self._cached_tokens,
            "output_tokens": self._completion_tokens,
        }

    def _end_with(self, delta: TextDelta) -> None:
        """Note why the answer ended, if it did."""
        if delta.finish_reason != NOT_FINISHED:
            cut, full = delta.finish_reason == LENGTH, self._completion_tokens < (self.request.limit or 0)
            length = "model_context_window_exceeded" if full else "max_tokens"
            self._ended = length if cut else "end_turn"
            self._stop_string = delta.stop_string or None

    def _stop_reason(self) -> str | None:
        if self._ended != "end_turn":
            return self._ended
        if self._parts and self._parts[0].calls:
            return "tool_use"
        return "stop_sequence" if self._stop_string else self._ended

    def _start(self) -> str:
        self._started = True
        start = {"type": "message_start", "message": self._message_of([])}
        return _event(start) + _event({"type": "ping"})

    def _piece_events(self, pieces: Pieces) -> str:
        events = ""
        if pieces.reasoning:
            events += self._within("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            events += self._delta({"type": "thinking_delta", "thinking": pieces.reasoning})
        if pieces.content:
            events += self._within("text", {"type": "text", "text": ""})
            events += self._delta({"type": "text_delta", "text": pieces.content})
        for call in pieces.calls:
            events += self._call_events(call)
        return events

    def _call_events(self, call: Call) -> str:
        number, self._calls = self._calls, self._calls + 1
        events = self._close() + self._within("tool_use", self._tool_use(number, call))
        return events + self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def _within(self, kind: str, block: Json) -> str:
        """The events that lead into a block of this type; none if the stream is in one."""
        if self._open == kind:
            return ""
        events = self._close()
        self._open, self._blocks = kind, self._blocks + 1
        return events + _event(
            {"type": "content_block_start", "index": self._blocks - 1, "content_block": block}
        )

    def _delta(self, delta: Json) -> str:
        return _event({"type": "content_block_delta", "index": self._blocks - 1, "delta": delta})

    def _close(self) -> str:
        kind, self._open = self._open, ""
        if not kind:
            return ""
        signed = {"type": "signature_delta", "signature": SIGNATURE}
        events = self._delta(signed) if kind == "thinking" else ""
        return events + _event({"type": "content_block_stop", "index": self._blocks - 1})


class NoAnswer(MessagesAnswer):
    """To who wants the prompt cached and nothing else. One token has been computed."""

    def _content(self, choice: Choice) -> list[Json]:
        return []

    def _piece_events(self, pieces: Pieces) -> str:
        return ""

    def _stop_reason(self) -> str | None:
        return "max_tokens"

    def _usage(self) -> Json:
        return super()._usage() | {"output_tokens": 0}


def _event(value: Json) -> str:
    return named_event(value["type"], compact(value))
