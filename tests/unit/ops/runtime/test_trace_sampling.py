"""Which traces are sent: those that are chosen, and of others what failed or was slow."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from ops.runtime.light_spans import LightSpan, LightTracerProvider
from ops.runtime.telemetry import failed, incoming, within
from ops.runtime.trace_sampling import LONGEST_WAIT, MAX_HELD, TENANT, Sampling
from tests.support.spans import Converted

TRACE = "0af7651916cd43dd8448eb211c80319c"
SLOW = 2.0


class Process:
    """A process with a sampling of its own, and what it has sent."""

    def __init__(self, sampling: Sampling) -> None:
        self._exporter = InMemorySpanExporter()
        batches = BatchSpanProcessor(Converted(self._exporter), schedule_delay_millis=3_600_000)
        self.provider = LightTracerProvider(sampling, batches)
        self.tracer: Tracer = self.provider.get_tracer("test")

    def sent(self) -> list[str]:
        self.provider.force_flush()
        return [span.name for span in self._exporter.get_finished_spans()]

    def close(self) -> None:
        self.provider.shutdown()


@pytest.fixture
def process() -> Any:
    processes: list[Process] = []

    def make(**sampling: Any) -> Process:
        processes.append(Process(Sampling(**sampling)))
        return processes[-1]

    yield make
    for each in processes:
        each.close()


Make = Callable[..., Process]


def parent(sampled: bool) -> Context:
    return incoming((("traceparent", f"00-{TRACE}-b7ad6b7169203331-0{int(sampled)}"),))


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_a_part_of_all_traces(rate: float) -> None:
    sampling = Sampling(rate=rate)
    ids = (number * 2**64 // 1000 + (number << 64) for number in range(1000))
    assert sum(sampling.chooses(each, None) for each in ids) == 1000 * rate


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_traces_that_begin_here_are_chosen_by_their_ids(process: Make, rate: float) -> None:
    served = process(rate=rate, slow_seconds=SLOW)
    for _ in range(200):
        span = served.tracer.start_span("request", Context())
        context = span.get_span_context()
        assert context.trace_flags.sampled == (context.trace_id % 2**64 < rate * 2**64)


def test_a_tenant_s_traces(process: Make) -> None:
    served = process(rate=0.0, tenants=frozenset({"ann"}))
    for tenant in ("ann", "bob"):
        served.tracer.start_span(tenant, Context(), attributes={TENANT: tenant}).end()
    served.tracer.start_span("nobody", Context()).end()
    assert served.sent() == ["ann"]


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_the_caller_has_decided(process: Make, rate: float) -> None:
    served = process(rate=rate)
    served.tracer.start_span("yes", parent(True)).end()
    served.tracer.start_span("no", parent(False)).end()
    assert served.sent() == ["yes"]


def ask(tracer: Tracer, end: Callable[[Span], object], context: Context | None = None) -> None:
    """A request with a part of it below; `end`: what happens to the part."""
    span = tracer.start_span("request", context or Context())
    with within("part", span) as part:
        end(part)
    span.end()


@pytest.mark.parametrize("context", [Context(), parent(False)])
def test_what_failed_or_was_slow_is_sent_after_all(process: Make, context: Context) -> None:
    served = process(rate=0.0, slow_seconds=SLOW)
    ask(served.tracer, lambda part: part.set_attribute(LONGEST_WAIT, SLOW / 2), context)
    ask(served.tracer, lambda part: part.set_attribute("other", 2 * SLOW), context)
    ask(served.tracer, lambda part: failed(part, ValueError("no"), None, "your mistake"), context)
    assert served.sent() == ["part", "request"], "an unexpected error is ours"
    ask(served.tracer, lambda part: part.set_attribute(LONGEST_WAIT, SLOW), context)
    ask(served.tracer, lambda part: part.set_status(Status(StatusCode.ERROR)), context)
    assert served.sent() == ["part", "request"] * 3


def test_what_is_sent_later_is_whole(process: Make) -> None:
    served = process(rate=0.0, slow_seconds=SLOW)
    ask(served.tracer, lambda part: failed(part, ValueError("no"), None), parent(False))
    served.provider.force_flush()
    part, request = served._exporter.get_finished_spans()
    assert part.parent.span_id == request.context.span_id
    assert trace.format_trace_id(request.context.trace_id) == TRACE
    assert (part.status.description, [event.name for event in part.events]) == ("no", ["exception"])
    assert part.end_time >= part.start_time


def test_without_tokens_the_whole_time_counts(process: Make) -> None:
    served = process(rate=0.0, slow_seconds=SLOW)
    for seconds in (SLOW, SLOW / 2):
        span = served.tracer.start_span(f"{seconds}", Context(), start_time=10**9)
        span.end(10**9 + int(seconds * 1e9))
    assert served.sent() == [f"{SLOW}"]


def test_a_part_may_end_after_its_request(process: Make) -> None:
    """As a worker's last step does."""
    served = process(rate=0.0, slow_seconds=SLOW)
    request = served.tracer.start_span("request", Context())
    late = served.tracer.start_span("late", trace.set_span_in_context(request))
    request.end()
    assert served.sent() == []
    failed(late, ValueError(), None)
    late.end()
    assert served.sent() == ["request", "late"]


def test_what_comes_after_the_end_of_a_request_is_sent_if_that_was(process: Make) -> None:
    """Nothing is held of a request that has ended, and nothing is sent twice."""
    served = process(rate=0.0, slow_seconds=SLOW)
    for ends, sent in (
        (lambda _: None, []),
        (lambda part: failed(part, ValueError(), None), ["part", "request", "late"]),
    ):
        request = served.tracer.start_span("request", Context())
        with within("part", request) as part:
            ends(part)
        request.end()
        assert isinstance(request, LightSpan)
        assert request.request.held == 0
        served.tracer.start_span("late", trace.set_span_in_context(request)).end()
        assert served.sent() == sent


def test_a_request_holds_so_many_spans(process: Make) -> None:
    served = process(rate=0.0, slow_seconds=SLOW)
    request = served.tracer.start_span("request", Context())
    for _ in range(2 * MAX_HELD):
        with within("part", request):
            pass
    assert isinstance(request, LightSpan)
    assert request.request.held == MAX_HELD


def test_of_many_spans_the_request_s_own_and_those_that_failed_are_sent(process: Make) -> None:
    served = process(rate=0.0, slow_seconds=SLOW)
    request = served.tracer.start_span("request", Context())
    late = served.tracer.start_span("late", trace.set_span_in_context(request))
    for number in range(2 * MAX_HELD):
        with within("part", request) as part:
            if number >= 2 * MAX_HELD - 2:
                failed(part, ValueError(), None)
    request.end()
    late.end()
    assert served.sent() == ["part"] * (MAX_HELD + 2) + ["request"]


def test_threads_may_end_spans_of_a_request_at_the_same_time(process: Make) -> None:
    """As a worker does: whichever is last, all are sent, and once."""
    served = process(rate=0.0, slow_seconds=SLOW)
    with ThreadPoolExecutor(8) as threads:
        for _ in range(50):
            request = served.tracer.start_span("request", Context())
            parts = [served.tracer.start_span("part", trace.set_span_in_context(request)) for _ in range(8)]
            failed(parts[0], ValueError(), None)
            request.end()
            list(threads.map(lambda part: part.end(), parts))
    assert sorted(served.sent()) == ["part"] * 400 + ["request"] * 50


def test_without_a_bound_nothing_is_recorded_that_is_not_chosen(process: Make) -> None:
    span = process(rate=0.0).tracer.start_span("request", Context())
    assert not span.is_recording()
    assert span.get_span_context().is_valid, "the next process learns that nobody wants it"
