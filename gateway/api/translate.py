"""From a validated body to requests for the tokenizer service, with every default of the API filled in."""

import json
import secrets
from collections.abc import Sequence
from typing import Any

from gateway.api.schema import ChatBody, CompletionBody, EmbeddingBody, GenerationBody, Message, RequestBody
from proto.sampling import STAGED
from proto.sampling_pb2 import FIRST, HEURISTIC, LAST, MEAN, NEVER, NO_POOLING, BeamSearch, SamplingParams
from proto.tokenizer_pb2 import ChatMessage, Conversation, EmbedRequest, TextRequest, TokenIds

SEED_BITS = 64

DEFAULTED = frozenset(each.name for each in STAGED if each.model)
"""Parameters for which a model may have a default of its own."""

_POOLING = {None: NO_POOLING, "mean": MEAN, "last": LAST}


def completion_requests(body: CompletionBody, request_id: str, tenant: str = "") -> list[TextRequest]:
    """One request per prompt. `tenant`: the tenant whose API key the client sent; empty without keys."""
    requests = []
    for prompt_id, prompt in zip(_ids(request_id, len(body.prompt)), body.prompt, strict=True):
        request = _request(body, prompt_id, tenant)
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.tokens.CopyFrom(TokenIds(ids=prompt))
        requests.append(request)
    return requests


def embedding_requests(body: EmbeddingBody, request_id: str, tenant: str = "") -> list[EmbedRequest]:
    """One request per text. `tenant`: the tenant whose API key the client sent; empty without keys."""
    requests = []
    for text_id, text in zip(_ids(request_id, len(body.input)), body.input, strict=True):
        request = EmbedRequest(
            request_id=text_id,
            pooling=_POOLING[body.pooling],
            dimensions=body.dimensions,
            cache_salt=_salt(body, tenant),
            tenant=tenant or body.user,
            priority=body.priority,
        )
        if isinstance(text, str):
            request.text = text
        else:
            request.tokens.CopyFrom(TokenIds(ids=text))
        requests.append(request)
    return requests


def chat_requests(body: ChatBody, request_id: str, tenant: str = "") -> list[TextRequest]:
    """The one request for a conversation. `tenant`: the tenant whose API key the client sent."""
    request = _request(body, request_id, tenant)
    request.chat.CopyFrom(_conversation(body.messages))
    if body.chat_template_kwargs:
        request.chat.template_arguments = json.dumps(body.chat_template_kwargs)
    return [request]


def _ids(request_id: str, count: int) -> list[str]:
    """An id for each prompt or text of a request."""
    return [request_id] if count == 1 else [f"{request_id}-{i}" for i in range(count)]


def _salt(body: RequestBody, tenant: str) -> str:
    """The cache salt, which keeps tenants with keys apart: a cached prefix would tell what another asked."""
    return f"{tenant}:{body.cache_salt}" if tenant else body.cache_salt


def _conversation(messages: Sequence[Message]) -> Conversation:
    # "developer" is OpenAI's newer name of the system role; chat templates know the older one.
    return Conversation(
        messages=[
            ChatMessage(
                role="system" if message.role == "developer" else message.role,
                content=message.content,
                name=message.name,
            )
            for message in messages
        ]
    )


def _request(body: GenerationBody, request_id: str, tenant: str) -> TextRequest:
    return TextRequest(
        request_id=request_id,
        sampling=_sampling(body),
        max_tokens=body.limit,
        stop=body.stop,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
        skip_special_tokens=body.skip_special_tokens,
        n=body.sequences,
        cache_salt=_salt(body, tenant),
        tenant=tenant or body.user,
        priority=body.priority,
        beams=_beams(body),
        rolling_context=body.rolling_context,
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
    # Without a seed each prompt gets one of its own, so that equal prompts get different answers.
    seed = secrets.randbits(SEED_BITS) if body.seed is None else body.seed % 2**SEED_BITS
    staged: dict[str, Any] = body.staged
    if body.use_beam_search:
        staged["temperature"] = 0
    return SamplingParams(**staged, seed=seed, logprobs=logprobs)
