"""POST /v1/chat/completions."""

from fastapi import APIRouter, Request, Response

from gateway.api.answer import FINISH_REASONS, Answer, Choice, Json, compact, quoted
from gateway.api.body import read_body
from gateway.api.logprobs import chat_logprobs
from gateway.api.respond import respond
from gateway.api.schema import ChatBody
from gateway.api.translate import chat_requests
from gateway.http.guard import tenant_of
from gateway.http.openapi import request_body
from gateway.upstream.generation import Generator
from proto.tokenizer_pb2 import TextDelta


def router(generator: Generator) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", openapi_extra={"requestBody": request_body(ChatBody)})
    async def create_chat_completion(request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, ChatBody)
        request_id: str = request.state.request_id
        answer = ChatAnswer(body, request_id, prompts=1)
        requests = chat_requests(body, request_id, tenant_of(request))
        return await respond(request, answer, generator.run(body.model, requests, body.timeout))

    return routes


class ChatAnswer(Answer):
    """An answer in the shape of the chat API."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_object_name = "chat.completion.chunk"

    def __init__(self, body: ChatBody, request_id: str, prompts: int) -> None:
        super().__init__(body, request_id, prompts)
        before, self._after = self._around_choices()
        self._before = [f'{before}{{"index":{index},"delta":' for index in range(prompts * body.n)]
        self._begun = [False] * len(self._before)

    def _delta_events(self, index: int, delta: TextDelta) -> str:
        events = "" if self._begun[index] else self._role_event(index)
        before, after, text = self._before[index], self._after, delta.text
        if text or (delta.token_ids and not self._plain):
            extras = ',"logprobs":null' if self._plain else self._extras(delta)
            events += f'{before}{{"content":{quoted(text)}}}{extras},"finish_reason":null}}{after}'
        if (reason := FINISH_REASONS[delta.finish_reason]) is not None:
            events += f'{before}{{}},"logprobs":null,"finish_reason":"{reason}"}}{after}'
        return events

    def _role_event(self, index: int) -> str:
        self._begun[index] = True
        delta = '{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        if self.request.return_token_ids:
            delta += f',"prompt_token_ids":{compact(self.prompt_tokens[0])}'
        return f"{self._before[index]}{delta}}}{self._after}"

    def _extras(self, delta: TextDelta) -> str:
        logprobs = None
        if self.request.wanted_logprobs is not None and delta.logprobs:
            logprobs = chat_logprobs(delta.logprobs)
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
            "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }
        if self.request.return_token_ids:
            fields["token_ids"] = choice.token_ids
            fields["prompt_token_ids"] = self.prompt_tokens[0]
        return fields

    def _logprobs(self, index: int, delta: TextDelta) -> Json:
        return chat_logprobs(delta.logprobs)
