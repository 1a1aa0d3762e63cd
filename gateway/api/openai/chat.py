"""POST /v1/chat/completions."""

import hashlib

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import Json, compact, quoted
from gateway.api.common.body import read_body
from gateway.api.generation.answer import FINISH_REASONS, Answer, Choice
from gateway.api.generation.logprobs import chat_logprobs
from gateway.api.messages.tool_choice import named
from gateway.api.messages.tools import input_of
from gateway.api.openai.answer_schema import ChatCompletion, ChatCompletionChunk
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.respond import respond
from gateway.api.openai.translate import chat_requests
from gateway.api.parsers.calls import Call, functions_of
from gateway.api.parsers.splitter import Pieces, Splitter
from gateway.http.openapi import posting
from gateway.upstream.generator import Generator
from proto.sampling_pb2 import LENGTH, NOT_FINISHED, FinishReason
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta


def router(generator: Generator) -> APIRouter:
    routes = APIRouter()

    @routes.post(
        "/v1/chat/completions", openapi_extra=posting(ChatBody, ChatCompletion, event=ChatCompletionChunk)
    )
    async def create_chat_completion(request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, ChatBody)
        return await respond(request, generator, body, chat_requests, ChatAnswer)

    return routes


class ChatAnswer(Answer):
    """An answer in the shape of the chat API."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def __init__(self, body: ChatBody, request_id: str, prompts: int) -> None:
        super().__init__(body, request_id, prompts)
        self._body, self._custom = body, body.custom
        before, self._after = self._around_choices()
        self._before = [f'{before}{{"index":{index},"delta":' for index in range(prompts * body.n)]
        self._begun = [False] * len(self._before)
        self._parts: list[_Parts] = []
        """Of each choice; empty if the model's answers are text alone."""
        self._thinks = False
        """The model's format has thoughts."""
        self._reasoning_tokens = 0

    def _delta_events(self, index: int, delta: TextDelta) -> str:
        events = "" if self._begun[index] else self._role_event(index)
        if self._parts:
            return events + self._part_events(index, delta)
        before, after, text = self._before[index], self._after, delta.text
        if text or (delta.token_ids and not self._plain):
            extras = ',"logprobs":null' if self._plain else self._extras(delta)
            events += f'{before}{{"content":{quoted(text)}}}{extras},"finish_reason":null}}{after}'
        if (reason := FINISH_REASONS[delta.finish_reason]) is not None:
            events += f'{before}{{}},"logprobs":null,{self._finished(index, delta, reason)}}}{after}'
        return events

    def _part_events(self, index: int, delta: TextDelta) -> str:
        """As `_delta_events`, of a text that may have thoughts and calls."""
        before, after, parts = self._before[index], self._after, self._parts[index]
        number = len(parts.calls)
        pieces = self._take(index, delta)
        deltas: list[Json] = []
        if pieces.reasoning and self._body.include_reasoning:
            deltas.append({"reasoning_content": pieces.reasoning, "reasoning": pieces.reasoning})
        if pieces.content:
            deltas.append({"content": pieces.content})
        for call in parts.calls[number:]:
            deltas.append(self._told([{"index": number, **self._call(index, number, call)}]))
            number += 1
        if not deltas and delta.token_ids and not self._plain:
            deltas.append({"content": ""})
        events, extras = "", ',"logprobs":null' if self._plain else self._extras(delta)
        for each in deltas:
            events += f'{before}{compact(each)}{extras},"finish_reason":null}}{after}'
            extras = ',"logprobs":null'
        if (reason := self._reason(index, FINISH_REASONS[delta.finish_reason])) is not None:
            events += f'{before}{{}},"logprobs":null,{self._finished(index, delta, reason)}}}{after}'
        return events

    def _take(self, index: int, delta: TextDelta) -> Pieces:
        """Take the new text of choice number `index`."""
        parts = self._parts[index]
        pieces = parts.take(delta.text, delta.finish_reason)
        if parts.splitter.thinking:
            self._reasoning_tokens += len(delta.token_ids)
        return pieces

    def _pieces(self, index: int, delta: TextDelta) -> Pieces:
        """What the new text of choice number `index` adds: text alone, if the model's answers are that."""
        if not self._parts:
            return Pieces(content=delta.text)
        calls = self._parts[index].calls
        number = len(calls)
        pieces = self._take(index, delta)
        # If only one call is allowed, others are among the pieces and not among the calls.
        return pieces._replace(calls=tuple(calls[number:]))

    def _reason(self, index: int, reason: str | None) -> str | None:
        """Of an answer that is the very call which the client has named, it is `stop`, as OpenAI's."""
        called = self._parts and self._parts[index].calls and not named(self._body.tool_choice)
        calls = "function_call" if self._body.functions else "tool_calls"
        return calls if reason == "stop" and called else reason

    def _told(self, calls: list[Json]) -> Json:
        """The field of a message that has these calls: one call, for who offers `functions`."""
        return {"function_call": calls[0]["function"]} if self._body.functions else {"tool_calls": calls}

    def _call(self, index: int, number: int, call: Call) -> Json:
        # Nine characters of this alphabet, as some models' templates demand when the call is sent back.
        made = hashlib.sha256(f"{self.id} {index} {number}".encode()).hexdigest()[:9]
        if call.name in self._custom:
            custom = {"name": call.name, "input": input_of(call.arguments)}
            return {"id": call.id or made, "type": "custom", "custom": custom}
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id or made, "type": "function", "function": function}

    def _note(self, prompt: int, info: PromptInfo) -> None:
        super()._note(prompt, info)
        if info.HasField("format"):
            functions, single = functions_of(self._body.offered), not self._body.parallel_tool_calls
            self._thinks = bool(info.format.thought_begin)
            self._parts = [_Parts(Splitter(info.format, functions), single) for _ in self._begun]

    def add(self, prompt: int, chunk: TextChunk) -> None:
        """Collect a chunk of the answer."""
        super().add(prompt, chunk)
        if self._parts:
            for delta in chunk.deltas:
                self._take(delta.index, delta)

    def _more(self) -> Json:
        prompt: Json = {"prompt_token_ids": self.prompt_token_ids[0]} if self.request.return_token_ids else {}
        return prompt | self._of_prompt(0)

    def _usage(self) -> Json:
        details: Json = {"reasoning_tokens": self._reasoning_tokens} if self._thinks else {}
        if self._body.predicted:
            details["accepted_prediction_tokens"] = self._accepted
            details["rejected_prediction_tokens"] = self._rejected
        return super()._usage() | ({"completion_tokens_details": details} if details else {})

    def _role_event(self, index: int) -> str:
        delta, after = '{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}', self._after
        if self.request.return_token_ids and not any(self._begun):
            after = after.replace("]", f'],"prompt_token_ids":{compact(self.prompt_token_ids[0])}', 1)
        self._begun[index] = True
        return f"{self._before[index]}{delta}{after}"

    def _extras(self, delta: TextDelta) -> str:
        logprobs = None
        if self.request.wanted_logprobs is not None and delta.logprobs:
            logprobs = self._logprobs(0, delta)
        fields: Json = {"logprobs": logprobs}
        if self.request.return_token_ids:
            fields["token_ids"] = list(delta.token_ids)
        return "," + compact(fields)[1:-1]

    def _choice(self, choice: Choice) -> Json:
        logprobs = None
        if self.request.wanted_logprobs is not None:
            content = [entry for part in choice.logprobs for entry in part["content"]]
            logprobs = {"content": content, "refusal": None}
        fields: Json = {
            "index": choice.index,
            "message": self._message(choice),
            "logprobs": logprobs,
            "finish_reason": self._reason(choice.index, choice.finish_reason),
            "stop_reason": choice.stop_reason,
        }
        if self.request.return_token_ids:
            fields["token_ids"] = choice.token_ids
        return fields

    def _message(self, choice: Choice) -> Json:
        message: Json = {"role": "assistant", "content": "".join(choice.text), "refusal": None}
        if self._parts:
            parts = self._parts[choice.index]
            message["content"] = "".join(parts.content)
            if (thoughts := "".join(parts.reasoning)) and self._body.include_reasoning:
                message["reasoning_content"] = message["reasoning"] = thoughts
            if parts.calls:
                calls = enumerate(parts.calls)
                message["content"] = message["content"] or None
                message |= self._told([self._call(choice.index, number, call) for number, call in calls])
        return message

    def _logprobs(self, index: int, delta: TextDelta) -> Json:
        return chat_logprobs(delta.logprobs, self.request.return_tokens_as_token_ids)


class _Parts:
    """Thoughts, content and calls of one choice, so far."""

    def __init__(self, splitter: Splitter, single: bool) -> None:
        """`single`: of several calls only the first is kept."""
        self.splitter, self._single = splitter, single
        self.reasoning: list[str] = []
        self.content: list[str] = []
        self.calls: list[Call] = []

    def take(self, text: str, reason: FinishReason) -> Pieces:
        """What `text` adds. `reason`: why no more text comes, if none does."""
        pieces = [self.splitter.add(text)]
        if reason != NOT_FINISHED:
            pieces.append(self.splitter.finish(cut=reason == LENGTH))
        found = Pieces(
            reasoning="".join(each.reasoning for each in pieces),
            content="".join(each.content for each in pieces),
            calls=tuple(call for each in pieces for call in each.calls),
        )
        self.reasoning.append(found.reasoning)
        self.content.append(found.content)
        self.calls += found.calls
        if self._single:
            del self.calls[1:]
        return found
