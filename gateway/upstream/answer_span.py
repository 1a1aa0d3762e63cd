"""The span of the answer to one prompt, below its request's span.

Its name and attributes are those of OpenTelemetry's semantic conventions for generative AI, as far as these
have one. What people ask and are answered is never in it.
"""

from collections.abc import Mapping
from functools import partial

from opentelemetry.trace import Span

from gateway.upstream.measures import REASONS, AnswerTimes
from ops.runtime.light_spans import LightSpan
from ops.runtime.trace_sampling import LONGEST_WAIT, TENANT
from proto.sampling_pb2 import FinishReason
from proto.tokenizer_pb2 import PromptInfo, TextRequest

PROVIDER = "quire"


class AnswerSpan:
    """From the moment in which a request has been read to the end of its answer."""

    def __init__(self, model: str, request: TextRequest, above: Span) -> None:
        """`above`: the span that it is below, if that is recorded."""
        own = above.child(f"{_operation(request)} {model}") if isinstance(above, LightSpan) else None
        self._own, self.span = own, own or above
        self._model, self._request = model, request
        self._input: dict[str, int] = {}
        self._reasons: dict[int, str] = {}

    def prompt(self, prompt: PromptInfo) -> None:
        """The prompt's tokens are known."""
        if self._own is not None:
            self._input = {
                "gen_ai.usage.input_tokens": prompt.tokens,
                "gen_ai.usage.cache_read.input_tokens": prompt.cached_tokens,
            }

    def finished(self, index: int, reason: FinishReason) -> None:
        """A sequence has ended."""
        if self._own is not None:
            self._reasons[index] = REASONS[reason]

    def end(self, times: AnswerTimes) -> None:
        """All of the answer has come, or nobody waits for it any more. `times`: when it came."""
        if (span := self._own) is not None:
            span.set_attribute(LONGEST_WAIT, round(times.longest_wait, 6))
            span.complete = partial(_describe, self._model, self._request, self._input, self._reasons, times)
            span.end()


def _describe(
    model: str,
    request: TextRequest,
    tokens: Mapping[str, int],
    reasons: Mapping[int, str],
    times: AnswerTimes,
    span: LightSpan,
) -> None:
    """Say in an answer's span what was asked for and what came."""
    span.attributes |= {
        "gen_ai.operation.name": _operation(request),
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": request.adapter or model,
        "gen_ai.request.choice.count": request.n,
        "quire.request_id": request.request_id,
        TENANT: request.tenant,
        **_parameters(request),
        **tokens,
        "gen_ai.usage.output_tokens": times.output_tokens,
        "gen_ai.response.finish_reasons": [reason for _, reason in sorted(reasons.items())],
    }
    if (first := times.first_chunk) is not None:
        span.attributes["gen_ai.response.time_to_first_chunk"] = first


def _operation(request: TextRequest) -> str:
    return "chat" if request.HasField("chat") else "text_completion"


def _parameters(request: TextRequest) -> dict[str, int | float]:
    """What the request says of how to sample; what it leaves to the model is not there."""
    found: dict[str, int | float] = {}
    if request.HasField("max_tokens"):
        found["gen_ai.request.max_tokens"] = request.max_tokens
    sampling, left_out = request.sampling, request.left_out[:]
    for name in ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty"):
        value = getattr(sampling, name)
        if name not in left_out and (value or name == "temperature"):
            found[f"gen_ai.request.{name}"] = value
    return found
