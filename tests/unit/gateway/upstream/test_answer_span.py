"""What the span of an answer holds besides what `behaviour/test_traces.py` shows."""

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN, Span

from gateway.upstream.answer_span import AnswerSpan
from gateway.upstream.measures import AnswerTimes, Measures
from ops.runtime.light_spans import LightTracerProvider
from ops.runtime.metrics import Metrics
from ops.runtime.trace_sampling import LONGEST_WAIT, Sampling
from proto.sampling_pb2 import STOP
from proto.tokenizer_pb2 import TextRequest
from tests.support.spans import Converted


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def above(exporter: InMemorySpanExporter) -> Span:
    """The span of the request."""
    provider = LightTracerProvider(Sampling(), SimpleSpanProcessor(Converted(exporter)))
    return provider.get_tracer("test").start_span("POST", Context())


def times_of(request: TextRequest) -> AnswerTimes:
    return AnswerTimes(Measures("m", Metrics()), request)


def test_what_the_client_has_left_out_is_not_there(exporter: InMemorySpanExporter, above: Span) -> None:
    request = TextRequest(text="secret", n=1, left_out=["temperature", "top_p"])
    request.sampling.temperature, request.sampling.top_p = 0.7, 0.9
    request.sampling.seed = 2**64 - 1  # no attribute can hold it
    answer, times = AnswerSpan("m", request, above), times_of(request)
    times.tokens(0, 2, STOP)
    answer.finished(0, STOP)
    answer.end(times)
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.attributes["gen_ai.usage.output_tokens"]) == ("text_completion m", 2)
    assert not [key for key in span.attributes if key.startswith("gen_ai.request.t")]
    assert all(value.bit_length() < 64 for value in span.attributes.values() if isinstance(value, int))


def test_an_answer_that_never_comes_was_waited_for(exporter: InMemorySpanExporter, above: Span) -> None:
    request = TextRequest(text="A", n=1)
    answer = AnswerSpan("m", request, above)
    answer.end(times_of(request))
    (span,) = exporter.get_finished_spans()
    assert span.attributes[LONGEST_WAIT] > 0
    assert "gen_ai.response.time_to_first_chunk" not in span.attributes
    assert span.attributes["gen_ai.response.finish_reasons"] == ()


def test_without_a_provider_nothing_is_kept() -> None:
    request = TextRequest(text="A", n=1)
    answer = AnswerSpan("m", request, INVALID_SPAN)
    answer.finished(0, STOP)
    answer.end(times_of(request))
    assert not answer._reasons
