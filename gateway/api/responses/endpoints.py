"""POST /v1/responses: OpenAI's Responses API.

A request becomes one of the chat API (`schema.py`), and the answer to that is written as a
response: items for thoughts, texts and calls, each with events for its beginning, its parts and its end.
"""

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import Json, compact
from gateway.api.common.body import made_of, read_body
from gateway.api.generation.logprobs import chat_logprobs
from gateway.api.messages.items import ItemReference, stored_items
from gateway.api.messages.opaque_thoughts import opaque
from gateway.api.messages.responses_tools import Offered
from gateway.api.messages.tools import input_of
from gateway.api.openai.chat import ChatAnswer
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.respond import respond
from gateway.api.openai.tokenize import prompt_of
from gateway.api.openai.translate import chat_requests
from gateway.api.parsers.calls import Call
from gateway.api.responses.answer_schema import RESPONSE_EVENTS, InputTokens, ResponseAnswer
from gateway.api.responses.background import Background, BackgroundRun, seen_by
from gateway.api.responses.schema import OPAQUE, ResponsesBody
from gateway.api.responses.stored import NO_ITEMS, Items, items_of
from gateway.errors import BadRequest, GatewayError
from gateway.http.caller import caller_of
from gateway.http.error_shape import shape_at
from gateway.http.openapi import posting
from gateway.http.sse import COMMENT, named_event
from gateway.parsing import PART_BYTES, parsed
from gateway.upstream.conversation_store import NOTHING_ADDED, Added, conversation_too_large
from gateway.upstream.generator import Generator
from gateway.upstream.response_store import ResponseStore, response_too_large
from gateway.upstream.stored_room import MAX_RECORD_BYTES
from proto.sampling_pb2 import LENGTH, NOT_FINISHED
from proto.tokenizer_pb2 import TextChunk, TextDelta

Put = Callable[[str, Json, Added], Awaitable[None]]
"""Stores a record under a response's id, and what it adds to a conversation."""

PATH = "/v1/responses"
_PARTS: dict[str, Json] = {
    "message": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "reasoning": {"type": "reasoning_text", "text": ""},
}
"""The part of an item of this type, before it has a text."""
_ITEMS: dict[str, Json] = {
    "message": {"role": "assistant", "content": []},
    "reasoning": {"summary": [], "content": []},
    "function_call": {},
    "custom_tool_call": {},
}
_ID_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "custom_tool_call": "ctc_"}
_SAID_TO = {"function_call": "arguments", "custom_tool_call": "input"}
"""The field of a call that the model fills in."""


@dataclass(frozen=True)
class Keeping:
    """What is kept of a response."""

    items: Items = NO_ITEMS
    put: Put | None = None
    """Stores the response; None: somebody else does, or nobody."""
    stored: bool = False
    created: int | None = None
    """When a background response was asked for."""
    tenant: str = ""


def router(generator: Generator, store: ResponseStore | None, background: Background | None) -> APIRouter:
    """`store`, `background`: None: nothing is stored, or made in the background."""
    routes = APIRouter()

    @routes.post(PATH, openapi_extra=posting(ResponsesBody, ResponseAnswer, events=RESPONSE_EVENTS))
    async def create_response(request: Request) -> Response:
        """Answer a conversation, in the shape of OpenAI's Responses API."""
        asked = await read_body(request, ResponsesBody)
        for name in ("store", "conversation"):
            if getattr(asked, name) and store is None:
                message = f"'{name}': this gateway stores nothing."
                raise BadRequest(message, param=name, code="unsupported_parameter")
        run: BackgroundRun | None = getattr(request.state, "run", None)
        if run is not None:  # its input has no references any more
            items = Items((), [item for item in asked.input if not isinstance(item, ItemReference)])
            keeping = Keeping(stored=True, created=run.created)
        elif background is not None and asked.stream and (seen := seen_by(request)) is not None:
            return await background.resume(request, *seen)
        else:
            items = await items_of(request, asked, store)
            if asked.background:
                return await _queue(request, generator, asked, items, background)
            stored = store is not None and asked.store is not False
            tenant = caller_of(request).tenant
            put = _put(store, tenant, stored, asked.conversation) if store else None
            if put is not None and sum(one.image_characters for one in items.all) > MAX_RECORD_BYTES:
                # It would be refused once the answer is there.
                raise response_too_large() if stored else conversation_too_large()
            keeping = Keeping(items if put else NO_ITEMS, put, stored, tenant=tenant)
        defaults = await generator.defaults_of(asked.model)
        offered, body = await _chat_of(request, asked, items)
        kind = partial(ResponsesAnswer, asked, keeping, defaults, offered)
        return await respond(request, generator, body, chat_requests, kind)

    @routes.post("/v1/responses/input_tokens", openapi_extra=posting(ResponsesBody, InputTokens))
    async def count_input_tokens(request: Request) -> Response:
        """How many tokens the model would see."""
        asked = await read_body(request, ResponsesBody)
        items = await items_of(request, asked, store)
        _, body = await _chat_of(request, asked, items)
        found = await prompt_of(request, generator, body)
        count = {"object": "response.input_tokens", "input_tokens": len(found.token_ids)}
        return Response(compact(count), media_type="application/json")

    return routes


async def _chat_of(request: Request, asked: ResponsesBody, items: Items) -> tuple[Offered, ChatBody]:
    """The tools of a request, and what it is as one of the chat API. Raises `BadRequest`."""

    def made() -> tuple[Offered, ChatBody]:
        offered = asked.offered(items.all)
        return offered, asked.chat(items.all, offered)

    return await made_of(request, made)


async def _stored(tenant: str, items: Items, request_id: str) -> list[Json]:
    """Items as they are stored."""
    every = items.all
    return await parsed(tenant, len(every) * PART_BYTES, lambda: stored_items(every, request_id))


def _put(store: ResponseStore, tenant: str, stored: bool, conversation: str) -> Put | None:
    """Stores a response if it is to be `stored`, and adds its items to its conversation; None: neither."""

    async def put(response_id: str, record: Json, added: Added) -> None:
        await store.put(tenant, response_id, record, added=added)

    async def add(_: str, __: Json, added: Added) -> None:
        await store.conversations.add(tenant, added)

    if stored:
        return put
    return add if conversation else None


async def _queue(
    request: Request,
    generator: Generator,
    asked: ResponsesBody,
    items: Items,
    background: Background | None,
) -> Response:
    """Have a response made in the background, once it is clear that it can be. Raises `GatewayError`."""
    if background is None or asked.store is False:
        message = "'background': the response must be stored, so that it can be found later."
        raise BadRequest(message, param="background", code="unsupported_parameter")
    request_id = request.state.request_id
    offered, body = await _chat_of(request, asked, items)
    chat_requests(body, request_id, caller_of(request))  # checks it
    defaults = await generator.defaults_of(body.model)
    answer = ResponsesAnswer(asked, Keeping(stored=True), defaults, offered, body, request_id, 1)
    queued = answer.queued()
    stored = await _stored(caller_of(request).tenant, items, request_id)
    return await background.begin(request, asked.without_input, queued, stored, len(items.earlier))


class ResponsesAnswer(ChatAnswer):
    """An answer in the shape of the Responses API. It has one choice."""

    id_prefix = "resp_"

    def __init__(
        self,
        asked: ResponsesBody,
        keeping: Keeping,
        defaults: Mapping[str, float],
        offered: Offered,
        body: ChatBody,
        request_id: str,
        prompts: int,
    ) -> None:
        """`defaults`: sampling parameters that the model has of its own. `offered`: the tools of `body`."""
        super().__init__(body, request_id, prompts)
        self.created = keeping.created or self.created
        self._echo = asked.echo(keeping.stored, defaults)
        self._keeping, self._offered = keeping, offered
        self._summarizes, self._opaque = asked.summary is not None, OPAQUE in asked.include
        self._item_ids = request_id
        self._output: list[Json] = []
        """The items so far. The last one may still be open."""
        self._open = False
        self._status = "in_progress"
        self._completed: int | None = None
        self._sent = 0
        """Events that were sent."""
        self._logprobs_held: list[Json] = []
        """Of tokens whose text may yet turn out to be part of a mark."""

    def events(self, prompt: int, chunk: TextChunk) -> str:
        events = "" if self._sent else self._start()
        return events + "".join(self._event(**fields) for fields in self._advance(prompt, chunk))

    async def keep(self) -> None:
        if self._keeping.put is not None:
            kept, response = self._keeping.items, self._response()
            items = await _stored(self._keeping.tenant, kept, self._item_ids)
            added = NOTHING_ADDED
            if (conversation := response["conversation"]) is not None:
                added = Added(conversation["id"], items[len(kept.earlier) :] + response["output"])
            await self._keeping.put(self.id, {"response": response, "input": items}, added)

    def queued(self) -> Json:
        """The response before it has begun."""
        return self._response() | {"status": "queued"}

    def last_events(self) -> str:
        return self._event(self._status, response=self._response())

    def keep_alive(self) -> str:
        if not self._sent:
            return self._start()
        if self._keeping.created is not None:  # its events are numbered, to go on from after a crash
            return COMMENT
        return self._event("in_progress", response=self._response())  # Codex does not count comments

    def failed(self, error: GatewayError) -> str | None:
        fault = json.loads(shape_at(PATH).body(error, ""))["error"]
        too_long, events = fault["code"] == "context_length_exceeded", ""
        if not self._sent:
            if not too_long or self._keeping.created is not None:
                return None
            # Not an HTTP error, as with OpenAI: agents shorten the conversation where a stream tells this.
            events = self._start() + self._named("error", error=fault)
        code = fault["code"] if too_long else "rate_limit_exceeded" if error.status == 429 else "server_error"
        for _ in self._close("incomplete"):
            pass
        self._status, self._completed = "failed", None
        response = self._response() | {"error": {"code": code, "message": fault["message"]}}
        return events + self._event("failed", response=response)

    def add(self, prompt: int, chunk: TextChunk) -> None:
        for _ in self._advance(prompt, chunk):
            pass

    def body(self) -> str:
        return compact(self._response())

    def _response(self) -> Json:
        """The response as it is now."""
        ended = self._status != "in_progress"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": self._completed,
            "status": self._status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "output": self._output if ended else [],
            "usage": self._usage() if ended else None,
            **self._echo,
        }

    def _usage(self) -> Json:
        input_tokens = self.prompt_tokens[0]
        return {
            "input_tokens": input_tokens,
            "input_tokens_details": {"cached_tokens": self._cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self._completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": input_tokens + self._completion_tokens,
        }

    def _start(self) -> str:
        return "".join(self._event(kind, response=self._response()) for kind in ("created", "in_progress"))

    def _event(self, kind: str, **fields: object) -> str:
        return self._named(f"response.{kind}", **fields)

    def _named(self, name: str, **fields: object) -> str:
        number, self._sent = self._sent, self._sent + 1
        return named_event(name, compact({"type": name, "sequence_number": number, **fields}))

    def _advance(self, prompt: int, chunk: TextChunk) -> Iterator[Json]:
        """Take a chunk, and give the events that it brings."""
        if chunk.HasField("prompt"):
            self._note(prompt, chunk.prompt)
        for delta in chunk.deltas:
            self._completion_tokens += len(delta.token_ids)
            yield from self._delta(delta)
            if delta.finish_reason != NOT_FINISHED:
                yield from self._end(cut=delta.finish_reason == LENGTH)

    def _delta(self, delta: TextDelta) -> Iterator[Json]:
        thinking = bool(self._parts) and self._parts[0].splitter.thinking
        pieces = self._pieces(0, delta)
        if self.request.wanted_logprobs is not None:
            self._logprobs_held += chat_logprobs(delta.logprobs)["content"]
        if pieces.reasoning:
            yield from self._text("reasoning", pieces.reasoning)
        if pieces.content:
            held, self._logprobs_held = self._logprobs_held, []
            yield from self._text("message", pieces.content, logprobs=held)
        for call in pieces.calls:
            yield from self._called(call)
        if thinking or pieces.reasoning or pieces.calls:
            self._logprobs_held = []

    def _text(self, kind: str, text: str, **more: list[Json]) -> Iterator[Json]:
        """More text of an item of type `kind`, after its beginning if the last item is none of these."""
        summarizes = self._summarizes and kind == "reasoning"
        if not self._open or self._output[-1]["type"] != kind:
            yield from self._close()
            yield self._begin(kind)
            part = _PARTS[kind] | {name: [] for name in more}
            self._output[-1]["content"] = [part]
            yield {"kind": "content_part.added", **self._place(), "content_index": 0, "part": part}
            if summarizes:
                self._output[-1]["summary"] = [summary := {"type": "summary_text", "text": ""}]
                yield self._summary("part.added", part=summary)
        part = self._output[-1]["content"][0]
        part["text"] += text
        for name, values in more.items():
            part[name] += values
        yield {"kind": f"{part['type']}.delta", **self._place(), "content_index": 0, "delta": text, **more}
        if summarizes:
            yield self._summary("text.delta", delta=text)

    def _called(self, call: Call) -> Iterator[Json]:
        yield from self._close()
        made = self._call(0, len(self._output), call)
        kind = "custom_tool_call" if call.name in self._custom else "function_call"
        field = _SAID_TO[kind]
        said = input_of(call.arguments) if kind == "custom_tool_call" else call.arguments
        yield self._begin(kind, call_id=made["id"], **self._offered.called(call.name), **{field: ""})
        self._output[-1][field] = said
        yield {"kind": f"{kind}_{field}.delta", **self._place(), "delta": said}
        yield from self._close()

    def _begin(self, kind: str, **fields: str) -> Json:
        item_id = f"{_ID_PREFIXES[kind]}{self._item_ids}_{len(self._output)}"
        self._output.append({"id": item_id, "type": kind, "status": "in_progress", **_ITEMS[kind], **fields})
        self._open = True
        return {
            "kind": "output_item.added",
            "output_index": len(self._output) - 1,
            "item": self._output[-1],
        }

    def _place(self) -> Json:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _close(self, status: str = "completed") -> Iterator[Json]:
        """End the last item, if it has not ended."""
        if not self._open:
            return
        self._open, item, place = False, self._output[-1], self._place()
        item["status"] = status
        if (field := _SAID_TO.get(item["type"])) is not None:
            yield {"kind": f"{item['type']}_{field}.done", **place, field: item[field]}
        else:
            (part,) = item["content"]
            whole = {name: part[name] for name in ("text", "logprobs") if name in part}
            yield {"kind": f"{part['type']}.done", **place, "content_index": 0, **whole}
            yield {"kind": "content_part.done", **place, "content_index": 0, "part": part}
            if item["type"] == "reasoning":
                yield from self._thought(item, part["text"])
        yield {"kind": "output_item.done", "output_index": place["output_index"], "item": item}

    def _summary(self, kind: str, **fields: object) -> Json:
        return {"kind": f"reasoning_summary_{kind}", **self._place(), "summary_index": 0, **fields}

    def _thought(self, item: Json, thought: str) -> Iterator[Json]:
        """End the summary of a thought that has ended, if it has one."""
        for summary in item["summary"]:
            summary["text"] = thought
            yield self._summary("text.done", text=thought)
            yield self._summary("part.done", part=summary)
        if self._opaque:
            item["encrypted_content"] = opaque(thought)

    def _end(self, cut: bool) -> Iterator[Json]:
        """`cut`: the answer has as many tokens as it may have."""
        self._status = "incomplete" if cut else "completed"
        self._completed = None if cut else int(time.time())
        yield from self._close(self._status)
