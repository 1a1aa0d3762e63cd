"""The span of the answer to one prompt, below its request's span.

Its name and attributes are those of OpenTelemetry's semantic conventions for generative AI, as far as these
have one. What people ask and are answered is never in it.
"""

from opentelemetry import trace
from opentelemetry.trace import Span

from gateway.upstream.measures import REASONS, AnswerTimes
from ops.runtime.trace_sampling import LONGEST_WAIT, TENANT
from proto.sampling_pb2 import FinishReason
from proto.tokenizer_pb2 import PromptInfo, TextRequest

PROVIDER = "quire"

tracer = trace.get_tracer("quire.gateway")


class AnswerSpan:
    """From the moment in which a request has been read to the end of its answer."""

    def __init__(self, model: str, request: TextRequest) -> None:
        operation = "chat" if request.HasField("chat") else "text_completion"
        self.span: Span = tracer.start_span(f"{operation} {model}")
        self._recording = self.span.is_recording()
        self._reasons: dict[int, str] = {}
        if self._recording:
            self.span.set_attributes(
                {
                    "gen_ai.operation.name": operation,
                    "gen_ai.provider.name": PROVIDER,
                    "gen_ai.request.model": model,
                    "gen_ai.request.choice.count": request.n,
                    "quire.request_id": request.request_id,
                    TENANT: request.tenant,
                    **_parameters(request),
                }
            )

    def prompt(self, prompt: PromptInfo) -> None:
        """The prompt's tokens are known."""
        if self._recording:
            tokens = {
                "gen_ai.usage.input_tokens": prompt.tokens,
                "gen_ai.usage.cache_read.input_tokens": prompt.cached_tokens,
            }
            self.span.set_attributes(tokens)

    def finished(self, index: int, reason: FinishReason) -> None:
        """A sequence has ended."""
        if self._recording:
            self._reasons[index] = REASONS[reason]

    def end(self, times: AnswerTimes) -> None:
        """All of the answer has come, or nobody waits for it any more. `times`: when it came."""
        if self._recording:
            if (first := times.first_chunk) is not None:
                self.span.set_attribute("gen_ai.response.time_to_first_chunk", first)
            self.span.set_attributes(
                {
                    "gen_ai.usage.output_tokens": times.output_tokens,
                    "gen_ai.response.finish_reasons": [reason for _, reason in sorted(self._reasons.items())],
                    LONGEST_WAIT: round(times.longest_wait, 6),
                }
            )
        self.span.end()


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
