"""POST /v1/completions."""

from fastapi import APIRouter, Request, Response

from gateway.api.answer import FINISH_REASONS, Answer, Choice, Json, compact, quoted
from gateway.api.body import read_body
from gateway.api.logprobs import CompletionLogprobs, joined
from gateway.api.respond import respond
from gateway.api.schema import CompletionBody
from gateway.api.translate import completion_requests
from gateway.http.guard import tenant_of
from gateway.http.openapi import request_body
from gateway.upstream.generation import Generator
from proto.tokenizer_pb2 import TextDelta


def router(generator: Generator) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions", openapi_extra={"requestBody": request_body(CompletionBody)})
    async def create_completion(request: Request) -> Response:
        """Continue one prompt or several."""
        body = await read_body(request, CompletionBody)
        request_id: str = request.state.request_id
        requests = completion_requests(body, request_id, tenant_of(request))
        answer = CompletionAnswer(body, request_id, len(requests))
        return await respond(request, answer, generator.run(body.model, requests, body.timeout))

    return routes


class CompletionAnswer(Answer):
    """An answer in the shape of the completions API."""

    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_object_name = "text_completion"

    def __init__(self, body: CompletionBody, request_id: str, prompts: int) -> None:
        super().__init__(body, request_id, prompts)
        before, self._after = self._around_choices()
        self._before = [f'{before}{{"index":{index},"text":' for index in range(prompts * body.n)]
        self._logprobs_of = [CompletionLogprobs() for _ in range(prompts * body.sequences)]
        self._prompt_sent: set[int] = set()

    def _delta_events(self, index: int, delta: TextDelta) -> str:
        text, reason = delta.text, FINISH_REASONS[delta.finish_reason]
        if not self._plain:
            extras = self._extras(index, delta)
        elif text or reason:
            extras = ',"logprobs":null'
        else:
            return ""
        finish = "null" if reason is None else f'"{reason}"'
        return f'{self._before[index]}{quoted(text)}{extras},"finish_reason":{finish}}}{self._after}'

    def _extras(self, index: int, delta: TextDelta) -> str:
        logprobs = None
        if self.request.wanted_logprobs is not None and delta.logprobs:
            logprobs = self._logprobs(index, delta)
        fields: Json = {"logprobs": logprobs}
        if self.request.return_token_ids:
            fields["token_ids"] = list(delta.token_ids)
            if index not in self._prompt_sent:
                self._prompt_sent.add(index)
                fields["prompt_token_ids"] = self.prompt_tokens[index // self.request.n]
        return "," + compact(fields)[1:-1]

    def _choice(self, choice: Choice) -> Json:
        fields: Json = {
            "index": choice.index,
            "text": "".join(choice.text),
            "logprobs": None if self.request.wanted_logprobs is None else joined(choice.logprobs),
            "finish_reason": choice.finish_reason,
        }
        if self.request.return_token_ids:
            fields["token_ids"] = choice.token_ids
            fields["prompt_token_ids"] = self.prompt_tokens[choice.index // self.request.n]
        return fields

    def _logprobs(self, index: int, delta: TextDelta) -> Json:
        return self._logprobs_of[index].of(delta.logprobs)
