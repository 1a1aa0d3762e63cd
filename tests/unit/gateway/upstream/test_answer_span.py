"""What the span of an answer holds besides what `behaviour/test_traces.py` shows."""

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.upstream import answer_span
from gateway.upstream.answer_span import AnswerSpan
from ops.runtime.trace_sampling import LONGEST_WAIT
from proto.sampling_pb2 import STOP
from proto.tokenizer_pb2 import TextRequest
from tests.support.spans import exported_to


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return exported_to(InMemorySpanExporter(), monkeypatch, answer_span)


def test_what_the_client_has_left_out_is_not_there(exporter: InMemorySpanExporter) -> None:
    request = TextRequest(text="secret", n=1, left_out=["temperature", "top_p"])
    request.sampling.temperature, request.sampling.top_p = 0.7, 0.9
    request.sampling.seed = 2**64 - 1  # no attribute can hold it
    answer = AnswerSpan("m", request)
    answer.tokens(0, 2, STOP)
    answer.end()
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.attributes["gen_ai.usage.output_tokens"]) == ("text_completion m", 2)
    assert not [key for key in span.attributes if key.startswith("gen_ai.request.t")]
    assert all(value.bit_length() < 64 for value in span.attributes.values() if isinstance(value, int))


def test_an_answer_that_never_comes_was_waited_for(exporter: InMemorySpanExporter) -> None:
    answer = AnswerSpan("m", TextRequest(text="A", n=1))
    answer.end()
    (span,) = exporter.get_finished_spans()
    assert span.attributes[LONGEST_WAIT] > 0
    assert span.attributes["gen_ai.response.finish_reasons"] == ()


def test_without_a_provider_nothing_is_kept() -> None:
    answer = AnswerSpan("m", TextRequest(text="A", n=1))
    answer.tokens(0, 1, STOP)
    answer.end()
    assert not answer._reasons
