"""From a validated body to requests for the tokenizer service, of texts to embed, compare or classify."""

from gateway.api.generation.budget import check, priority_of
from gateway.api.openai.translate import conversation_of, ids_of, json_of
from gateway.api.pooling.classify_schema import ClassifyBody
from gateway.api.pooling.embeddings_schema import EmbeddingBody, PoolingBody
from gateway.api.pooling.rank_schema import Compared
from gateway.http.caller import Caller
from proto.sampling_pb2 import ALL, CLASSIFY, CLS, LAST, MEAN, NO_POOLING
from proto.tokenizer_pb2 import EmbedRequest, TokenIds

_POOLING = {None: NO_POOLING, "mean": MEAN, "last": LAST, "cls": CLS}


def embedding_requests(body: EmbeddingBody, request_id: str, caller: Caller) -> list[EmbedRequest]:
    """One request per text. Raises `BadRequest` if the caller's limits do not allow it."""
    requests = _embed_requests(body, len(body.input), request_id, caller)
    for request, text in zip(requests, body.input, strict=True):
        request.pooling = ALL if isinstance(body, PoolingBody) and body.of_tokens else _POOLING[body.pooling]
        if body.dimensions is not None:
            request.dimensions = body.dimensions
        _set_input(request, text)
    return requests


def classify_requests(body: ClassifyBody, request_id: str, caller: Caller) -> list[EmbedRequest]:
    """One request per text, or the one for a conversation. Raises `BadRequest` as above."""
    requests = _embed_requests(body, len(body.input) or 1, request_id, caller)
    for request in requests:
        request.pooling, request.raw = CLASSIFY, not body.use_activation
    for request, text in zip(requests, body.input, strict=bool(body.input)):
        _set_input(request, text)
    if body.messages:
        chat = requests[0].chat
        chat.CopyFrom(conversation_of(body.messages))
        chat.no_generation_prompt = not body.add_generation_prompt
        if body.chat_template_kwargs:
            chat.template_arguments = json_of(body.chat_template_kwargs)
    return requests


def pair_requests(body: Compared, request_id: str, caller: Caller) -> list[EmbedRequest]:
    """One request per pair of texts, for a cross-encoder. Raises `BadRequest` as above."""
    pairs = body.text_pairs()
    requests = _embed_requests(body, len(pairs), request_id, caller)
    for request, (query, document) in zip(requests, pairs, strict=True):
        request.pooling, request.raw = CLASSIFY, not body.use_activation
        request.pair.query, request.pair.document = query, document
    return requests


def _embed_requests(
    body: EmbeddingBody | ClassifyBody | Compared, count: int, request_id: str, caller: Caller
) -> list[EmbedRequest]:
    check(body, caller.limits)
    return [
        EmbedRequest(
            request_id=text_id,
            cache_salt=caller.salt(body.cache_salt),
            tenant=caller.tenant,
            user=body.user,
            priority=priority_of(body, caller.limits, caller.late),
            truncate_prompt_tokens=body.truncate_prompt_tokens or 0,
        )
        for text_id in ids_of(request_id, count)
    ]


def _set_input(request: EmbedRequest, text: str | list[int]) -> None:
    if isinstance(text, str):
        request.text = text
    else:
        request.tokens.CopyFrom(TokenIds(ids=text))
