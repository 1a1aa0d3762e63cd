"""The span of the answer to one prompt, below its request's span.

Its name and attributes are those of OpenTelemetry's semantic conventions for generative AI, as far as these
have one. What people ask and are answered is never in it.
"""

from opentelemetry import trace
from opentelemetry.trace import Span

from ops.runtime.telemetry import Waits
from ops.runtime.trace_sampling import TENANT
from proto.sampling_pb2 import LENGTH, STOP, FinishReason
from proto.tokenizer_pb2 import PromptInfo, TextRequest

PROVIDER = "quire"
_REASONS = {STOP: "stop", LENGTH: "length"}

tracer = trace.get_tracer("quire.gateway")


class AnswerSpan:
    """From the moment in which a request has been read to the end of its answer."""

    def __init__(self, model: str, request: TextRequest) -> None:
        operation = "chat" if request.HasField("chat") else "text_completion"
        self.span: Span = tracer.start_span(f"{operation} {model}")
        self._recording = self.span.is_recording()
        self._waits = Waits()
        self._reasons: dict[int, str] = {}
        self._output_tokens = 0
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

    def tokens(self, index: int, tokens: int, reason: FinishReason) -> None:
        """A sequence has got `tokens` more: see `AnswerTimes.tokens`."""
        if not self._recording:
            return
        if tokens:
            waited = self._waits.came()
            if not self._output_tokens:
                self.span.set_attribute("gen_ai.response.time_to_first_chunk", waited)
            self._output_tokens += tokens
        if reason:
            self._reasons[index] = _REASONS[reason]

    def end(self) -> None:
        """All of the answer has come, or nobody waits for it any more."""
        if self._recording:
            reasons = [self._reasons[index] for index in sorted(self._reasons)]
            self.span.set_attribute("gen_ai.usage.output_tokens", self._output_tokens)
            self.span.set_attribute("gen_ai.response.finish_reasons", reasons)
            self._waits.note(self.span)
        self.span.end()


def _parameters(request: TextRequest) -> dict[str, int | float]:
    """What the request says of how to sample; what it leaves to the model is not there."""
    found: dict[str, int | float] = {}
    if request.HasField("max_tokens"):
        found["gen_ai.request.max_tokens"] = request.max_tokens
    for name in ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty"):
        value = getattr(request.sampling, name)
        if name not in request.left_out and (value or name == "temperature"):
            found[f"gen_ai.request.{name}"] = value
    return found
