"""From a text that is to be embedded or classified to what the scheduler is asked."""

from proto import arrays
from proto.sampling_pb2 import CLASSIFY, Pooling
from proto.scheduler_pb2 import EmbedTokensRequest
from proto.tokenizer_pb2 import EmbedRequest
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.model.classification import check_pooling
from tokenizer_svc.model.pooling import check_kind, pooling_of
from tokenizer_svc.model.tokenizer import TextModel
from tokenizer_svc.requests.context import ContextLength, unknown
from tokenizer_svc.requests.prompt import Render, input_tokens


async def tokens_request(
    model: TextModel,
    request: EmbedRequest,
    context: ContextLength = unknown,
    render: Render | None = None,
) -> EmbedTokensRequest:
    """`context`, `render`: see `input_tokens`. Raises `InvalidRequestError`."""
    if request.pooling not in Pooling.values():
        raise InvalidRequestError("pooling", f"pooling {request.pooling} is not known")
    check_pooling(model.classifier, request.pooling == CLASSIFY)
    check_kind(request.pooling, model.pooling_ways, model.bidirectional)
    pooling = request.pooling or pooling_of(model.pooling_ways, model.bidirectional)
    tokens, second_segment = await input_tokens(model, request, context, render)
    return EmbedTokensRequest(
        request_id=request.request_id,
        tokens=arrays.pack(tokens),
        second_segment=second_segment,
        pooling=pooling,
        dimensions=request.dimensions,
        cache_salt=request.cache_salt,
        adapter=request.adapter,
        tenant=request.tenant,
        user=request.user,
        priority=request.priority,
    )
