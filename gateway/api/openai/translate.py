"""From a validated body to requests for the tokenizer service, with every default of the API filled in.

Those for texts to embed, compare or classify are in `pooling/translate.py`.
"""

import json
import secrets
from collections.abc import Sequence
from typing import Any

from gateway.api.common.fields import MAX_INT32
from gateway.api.generation.budget import check, most_tokens_of, priority_of
from gateway.api.generation.schema import GenerationBody
from gateway.api.openai.chat_schema import ChatBody, Message
from gateway.api.openai.completions_schema import CompletionBody
from gateway.http.caller import Caller
from proto.sampling import STAGED
from proto.sampling_pb2 import (
    FIRST,
    HEURISTIC,
    NEVER,
    BeamSearch,
    SamplingParams,
    TokenRules,
)
from proto.tokenizer_pb2 import ChatMessage, Conversation, TextRequest, TokenIds
from proto.tokenizer_pb2 import ToolCall as CalledTool

SEED_BITS = 64

DEFAULTED = frozenset(each.name for each in STAGED if each.model)
"""Parameters for which a model may have a default of its own."""


def completion_requests(body: CompletionBody, request_id: str, caller: Caller) -> list[TextRequest]:
    """One request per prompt. Raises `BadRequest` if the caller's limits do not allow it."""
    check(body, caller.limits)
    alike, requests = _request(body, request_id, caller), []
    for prompt_id, prompt in zip(ids_of(request_id, len(body.prompt)), body.prompt, strict=True):
        request = TextRequest()
        request.CopyFrom(alike)
        request.request_id = prompt_id
        request.sampling.seed = _seed(body)
        request.echo = body.echoes_tokens
        if isinstance(prompt, str) and body.suffix:
            request.infill.before, request.infill.after = prompt, body.suffix
        elif isinstance(prompt, str):
            request.text = prompt
        else:
            request.tokens.CopyFrom(TokenIds(ids=prompt))
        requests.append(request)
    return requests


def chat_requests(body: ChatBody, request_id: str, caller: Caller) -> list[TextRequest]:
    """The one request for a conversation. Raises `BadRequest` if the caller's limits do not allow it."""
    check(body, caller.limits)
    request = _request(body, request_id, caller)
    request.chat.CopyFrom(conversation_of(body.messages))
    if arguments := body.variables:
        # As compact as the client's: it must not grow beyond what was admitted.
        request.chat.template_arguments = json_of(arguments)
    request.chat.no_generation_prompt = not body.add_generation_prompt
    request.chat.continue_final_message = body.continue_final_message
    request.chat.template = body.chat_template
    if body.documents:
        request.chat.documents = json_of(body.documents)
    if body.thinking_token_budget is not None:
        request.thinking_budget = body.thinking_token_budget
        request.lenient_budget = body.lenient_budget
    if offered := body.offered:
        request.chat.tools = json_of(offered)
    return [request]


def json_of(value: object) -> str:
    """A value as JSON without spaces, in which only what must be is escaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def ids_of(request_id: str, count: int) -> list[str]:
    """An id for each prompt or text of a request."""
    return [request_id] if count == 1 else [f"{request_id}-{i}" for i in range(count)]


def conversation_of(messages: Sequence[Message]) -> Conversation:
    # "developer" is OpenAI's newer name of the system role; chat templates know the older one.
    return Conversation(
        messages=[
            ChatMessage(
                role="system" if message.role == "developer" else message.role,
                content=message.content,
                name=message.name,
                tool_calls=[
                    CalledTool(id=call.id, name=call.function.name, arguments=call.function.arguments)
                    for call in message.tool_calls
                ],
                tool_call_id=message.tool_call_id,
                reasoning=message.reasoning_content or message.reasoning,
                no_content=message.content is None,
            )
            for message in messages
        ]
    )


def _request(body: GenerationBody, request_id: str, caller: Caller) -> TextRequest:
    last = body.truncate_prompt_tokens
    return TextRequest(
        request_id=request_id,
        sampling=_sampling(body),
        max_tokens=body.limit,
        most_tokens=most_tokens_of(body, caller.limits),
        stop=body.stop,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
        truncate_prompt_tokens=MAX_INT32 if last == -1 else last,
        add_special_tokens=body.add_special_tokens,
        no_text=not body.detokenize,
        return_prompt_tokens=body.return_token_ids,
        include_stop_text=body.include_stop_str_in_output,
        bad_words=body.bad_words,
        dry_breakers=body.dry_sequence_breakers if body.dry else (),
        skip_special_tokens=body.skip_special_tokens,
        n=body.sequences,
        cache_salt=caller.salt(body.cache_salt),
        tenant=caller.tenant,
        user=body.user,
        priority=priority_of(body, caller.limits, caller.late),
        beams=_beams(body),
        rolling_context=body.rolling_context,
        prediction=body.predicted,
        shape=body.shape,
        left_out=_left_out(body),
    )


def _left_out(body: GenerationBody) -> list[str]:
    """Parameters that the client left out, so that a default of the model's own counts."""
    # Nothing is drawn in a beam search. A rolling context without max_tokens has no end.
    names = set() if body.use_beam_search else set(DEFAULTED - body.model_fields_set)
    if not (body.rolling_context or body.model_fields_set & {"max_tokens", "max_completion_tokens"}):
        names.add("max_tokens")
    return sorted(names)


def _beams(body: GenerationBody) -> BeamSearch | None:
    """The beam search; None for one beam alone, which is greedy sampling."""
    if not body.use_beam_search or body.width == 1:
        return None
    stopping = {False: HEURISTIC, True: FIRST, "never": NEVER}[body.early_stopping]
    return BeamSearch(beam_width=body.width, length_penalty=body.length_penalty, early_stopping=stopping)


def _sampling(body: GenerationBody) -> SamplingParams:
    # `best_of` compares answers by their log probabilities, whether the client wants to see them or not.
    logprobs = body.wanted_logprobs if body.sequences == body.n else body.wanted_logprobs or 0
    staged: dict[str, Any] = body.staged
    if body.use_beam_search:
        staged["temperature"] = 0
    return SamplingParams(
        **staged,
        seed=_seed(body),
        logprobs=logprobs,
        prompt_logprobs=body.scored_alternatives,
        rules=_rules(body),
    )


def _seed(body: GenerationBody) -> int:
    """Without a seed each prompt gets one of its own, so that equal prompts get different answers."""
    return secrets.randbits(SEED_BITS) if body.seed is None else body.seed % 2**SEED_BITS


def _rules(body: GenerationBody) -> TokenRules | None:
    if not (body.logit_bias or body.allowed_token_ids or body.min_tokens or body.dry):
        return None
    return TokenRules(
        biased_tokens=body.logit_bias.keys(),
        biases=body.logit_bias.values(),
        allowed_tokens=body.allowed_token_ids or (),
        min_tokens=body.min_tokens,
        dry=body.dry,
    )
