"""POST /v1/completions."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import Json, compact, quoted
from gateway.api.common.body import read_body
from gateway.api.generation.answer import FINISH_REASONS, Answer, Choice
from gateway.api.generation.logprobs import CompletionLogprobs, echoed, joined
from gateway.api.openai.answer_schema import Completion, CompletionChunk
from gateway.api.openai.completions_schema import CompletionBody
from gateway.api.openai.respond import respond
from gateway.api.openai.translate import completion_requests
from gateway.http.openapi import posting
from gateway.upstream.generator import Generator
from proto.sampling_pb2 import LENGTH
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta, TokenText


def router(generator: Generator) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions", openapi_extra=posting(CompletionBody, Completion, event=CompletionChunk))
    async def create_completion(request: Request) -> Response:
        """Continue one prompt or several."""
        body = await read_body(request, CompletionBody)
        kind = EchoAnswer if body.echo else CompletionAnswer
        return await respond(request, generator, body, completion_requests, kind)

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
        self._as_ids = body.return_tokens_as_token_ids
        self._logprobs_of = [CompletionLogprobs(as_ids=self._as_ids) for _ in range(prompts * body.sequences)]
        self._prompt_sent: set[int] = set()

    def _delta_events(self, index: int, delta: TextDelta) -> str:
        text, reason = delta.text, FINISH_REASONS[delta.finish_reason]
        if not self._plain:
            extras = self._extras(index, delta)
        elif text or reason:
            extras = ',"logprobs":null'
        else:
            return ""
        end = '"finish_reason":null' if reason is None else self._finished(index, delta, reason)
        return f"{self._before[index]}{quoted(text)}{extras},{end}}}{self._after}"

    def _extras(self, index: int, delta: TextDelta) -> str:
        logprobs = None
        if self.request.wanted_logprobs is not None and delta.logprobs:
            logprobs = self._logprobs(index, delta)
        fields: Json = {"logprobs": logprobs}
        if self.request.return_token_ids:
            fields["token_ids"] = list(delta.token_ids)
            if index not in self._prompt_sent:
                self._prompt_sent.add(index)
                fields["prompt_token_ids"] = self.prompt_token_ids[index // self.request.n]
        return "," + compact(fields)[1:-1]

    def _choice(self, choice: Choice) -> Json:
        fields: Json = {
            "index": choice.index,
            "text": "".join(choice.text),
            "logprobs": None if self.request.wanted_logprobs is None else joined(choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            **self._of_prompt(choice.index // self.request.n),
        }
        if self.request.return_token_ids:
            fields["token_ids"] = choice.token_ids
            fields["prompt_token_ids"] = self.prompt_token_ids[choice.index // self.request.n]
        return fields

    def _logprobs(self, index: int, delta: TextDelta) -> Json:
        return self._logprobs_of[index].of(delta.logprobs)


class EchoAnswer(CompletionAnswer):
    """An answer each of whose texts begins with its prompt. In a stream the prompt is an event of its own."""

    def __init__(self, body: CompletionBody, request_id: str, prompts: int) -> None:
        super().__init__(body, request_id, prompts)
        self._alone = body.echoes_alone
        self._prompts = [""] * prompts if body.echoes_tokens else list(body.prompt)
        self._prompt_parts: list[list[Json]] = [[] for _ in range(prompts)]
        """Log probabilities of each prompt, as far as they have come."""
        self._echoed: set[int] = set()
        """Choices whose prompts have been sent."""

    def events(self, prompt: int, chunk: TextChunk) -> str:
        self._prepare(chunk)
        if chunk.prompt_logprobs:
            self._score(prompt, chunk.prompt_logprobs)
        return super().events(prompt, chunk)

    def add(self, prompt: int, chunk: TextChunk) -> None:
        self._prepare(chunk)
        super().add(prompt, chunk)

    def _prepare(self, chunk: TextChunk) -> None:
        """Leave the one generated token out, if the prompt alone is wanted."""
        for delta in chunk.deltas if self._alone else ():
            delta.text = ""
            del delta.token_ids[:], delta.logprobs[:]
            delta.finish_reason = LENGTH

    def _note(self, prompt: int, info: PromptInfo) -> None:
        super()._note(prompt, info)
        self._prompts[prompt] = text = self._prompts[prompt] or info.text
        first, count = prompt * self.request.sequences, self.request.sequences
        self._logprobs_of[first : first + count] = [
            CompletionLogprobs(len(text), self._as_ids) for _ in range(count)
        ]

    def _score(self, prompt: int, tokens: Sequence[TokenText]) -> None:
        super()._score(prompt, tokens)
        if (alternatives := self.request.wanted_logprobs) is not None:
            self._prompt_parts[prompt].append(echoed(tokens, alternatives, self._as_ids))

    def _shown(self, prompt: int) -> str:
        """The text of prompt number `prompt` as the answer has it: empty if there are tokens alone."""
        return self._prompts[prompt] if self.request.detokenize else ""

    def _delta_events(self, index: int, delta: TextDelta) -> str:
        events = super()._delta_events(index, delta)
        if index in self._echoed:
            return events
        self._echoed.add(index)
        prompt = index // self.request.n
        logprobs = compact(joined(self._prompt_parts[prompt])) if self._prompt_parts[prompt] else "null"
        extras = f',"logprobs":{logprobs},"finish_reason":null'
        return f"{self._before[index]}{quoted(self._shown(prompt))}{extras}}}{self._after}{events}"

    def _choice(self, choice: Choice) -> Json:
        prompt = choice.index // self.request.n
        choice.text.insert(0, self._shown(prompt))
        choice.logprobs[:0] = self._prompt_parts[prompt]
        return super()._choice(choice)
