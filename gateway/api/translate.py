"""From a validated body to what the tokenizer service is asked, with every default of the API filled in."""

import json
import secrets
from collections.abc import Sequence

from gateway.api.schema import ChatBody, CompletionBody, EmbeddingBody, GenerationBody, Message, RequestBody
from proto.sampling_pb2 import FIRST, HEURISTIC, LAST, MEAN, NEVER, NO_POOLING, BeamSearch, SamplingParams
from proto.tokenizer_pb2 import ChatMessage, Conversation, EmbedRequest, TextRequest, TokenIds

SEED_BITS = 64

# `top_p` of 0 is the most likely token alone; behind the gateway it is above 0, in a float32, too.
SMALLEST_TOP_P = 1e-30

DEFAULTED = frozenset(("temperature", "top_p", "top_k", "min_p", "repetition_penalty"))
"""What of a draw a model may have a default of its own for."""

_POOLING = {None: NO_POOLING, "mean": MEAN, "last": LAST}


def completion_requests(body: CompletionBody, request_id: str, tenant: str = "") -> list[TextRequest]:
    """One request per prompt. `tenant`: whose API key it was asked with."""
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
    """One request per text. `tenant`: whose API key it was asked with."""
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
    """The one request that a conversation is."""
    request = _request(body, request_id, tenant)
    request.chat.CopyFrom(_conversation(body.messages))
    if body.chat_template_kwargs:
        request.chat.template_arguments = json.dumps(body.chat_template_kwargs)
    return [request]


def _ids(request_id: str, count: int) -> list[str]:
    """A name for each part of a request."""
    return [request_id] if count == 1 else [f"{request_id}-{i}" for i in range(count)]


def _salt(body: RequestBody, tenant: str) -> str:
    """Tenants with keys share no prefixes: how fast one is answered tells nothing of what another asked."""
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
    """What is the model's to say, because the client has not."""
    # A beam search takes nothing that shapes a draw, and who rolls on without a number means no end.
    names = set() if body.use_beam_search else set(DEFAULTED - body.model_fields_set)
    if not (body.rolling_context or body.model_fields_set & {"max_tokens", "max_completion_tokens"}):
        names.add("max_tokens")
    return sorted(names)


def _beams(body: GenerationBody) -> BeamSearch | None:
    """One beam alone is what greedy sampling gives."""
    if not body.use_beam_search or body.width == 1:
        return None
    stopping = {False: HEURISTIC, True: FIRST, "never": NEVER}[body.early_stopping]
    return BeamSearch(width=body.width, length_penalty=body.length_penalty, early_stopping=stopping)


def _sampling(body: GenerationBody) -> SamplingParams:
    # Without a seed each prompt draws from a key of its own, so that equal prompts may differ.
    # What is chosen from is compared by its log probabilities.
    logprobs = body.wanted_logprobs if body.sequences == body.n else body.wanted_logprobs or 0
    seed = secrets.randbits(SEED_BITS) if body.seed is None else body.seed % 2**SEED_BITS
    return SamplingParams(
        temperature=0 if body.use_beam_search else body.temperature,
        top_p=max(body.top_p, SMALLEST_TOP_P),
        top_k=max(body.top_k, 0),
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        seed=seed,
        logprobs=logprobs,
    )
