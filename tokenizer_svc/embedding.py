"""From a text that is to be embedded to what the scheduler is asked."""

from proto import arrays
from proto.sampling_pb2 import Pooling
from proto.scheduler_pb2 import EmbedTokensRequest
from proto.tokenizer_pb2 import EmbedRequest
from tokenizer_svc.context import ContextLength, unknown
from tokenizer_svc.errors import InvalidRequestError
from tokenizer_svc.pooling import pooling_of
from tokenizer_svc.prompt import input_tokens
from tokenizer_svc.tokenizer import TextModel


async def tokens_request(
    model: TextModel, request: EmbedRequest, context: ContextLength = unknown
) -> EmbedTokensRequest:
    """`context`: see `input_tokens`. Raises `InvalidRequestError`."""
    if request.pooling not in Pooling.values():
        raise InvalidRequestError("pooling", f"pooling {request.pooling} is not known")
    pooling = request.pooling or pooling_of(model.pooling_ways)
    return EmbedTokensRequest(
        request_id=request.request_id,
        tokens=arrays.pack(await input_tokens(model, request, context)),
        pooling=pooling,
        dimensions=request.dimensions,
        cache_salt=request.cache_salt,
        tenant=request.tenant,
        user=request.user,
        priority=request.priority,
    )
