"""How many alternatives the log probabilities of a request may have, in prompt and answers together."""

from collections.abc import Sequence

from proto.tokenizer_pb2 import TextRequest
from tokenizer_svc.errors import InvalidRequestError

FEW = 20
"""Alternatives to each token that are always possible."""

MOST = 2**19
"""Alternatives of one request at most, if it wants more than `FEW` with each token: what the buffers between
services hold for a reader that is slow, and a few hundred megabytes in the gateway."""


def bound_alternatives(request: TextRequest, prompt: Sequence[int], vocab_size: int) -> None:
    """Replace numbers of alternatives above the vocabulary's by it. Raises `InvalidRequestError`."""
    sampling, total = request.sampling, 0
    every = request.n * request.max_tokens if request.HasField("max_tokens") else MOST + 1
    for name, tokens in (("prompt_logprobs", len(prompt)), ("logprobs", every)):
        if not sampling.HasField(name) or getattr(sampling, name) <= FEW:
            continue
        each = min(getattr(sampling, name), vocab_size)
        setattr(sampling, name, each)
        total += each * tokens
        if each > FEW and total > MOST:
            raise InvalidRequestError(
                name,
                f"{each} alternatives to each token are more than {MOST} in all: ask for fewer of them, or "
                "for fewer tokens ('max_tokens')",
            )
