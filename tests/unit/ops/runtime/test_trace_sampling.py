"""Which traces are sent: those that are chosen, and of others what failed or was slow."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from ops.runtime.telemetry import failed, incoming, within
from ops.runtime.trace_sampling import (
    LONGEST_WAIT,
    MAX_HELD,
    TENANT,
    KeptIfFaulty,
    RequestSampler,
    Sampling,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SLOW = 2.0


class Process:
    """A process with a sampling of its own, and what it has sent."""

    def __init__(self, sampling: Sampling) -> None:
        self.provider = TracerProvider(RequestSampler(sampling))
        self._exporter = InMemorySpanExporter()
        self.batches = BatchSpanProcessor(self._exporter, schedule_delay_millis=3_600_000)
        self.processor = KeptIfFaulty(self.batches, sampling.slow_seconds)
        self.provider.add_span_processor(self.processor if sampling.slow_seconds else self.batches)
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
def test_a_part_of_all_traces(process: Make, rate: float) -> None:
    sampler = RequestSampler(Sampling(rate=rate))
    ids = (number * 2**64 // 1000 + (number << 64) for number in range(1000))
    chosen = sum(sampler.should_sample(Context(), each, "n").decision.is_sampled() for each in ids)
    assert chosen == 1000 * rate


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
    with within(tracer, "part", span) as part:
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
    assert part.resource is request.resource is served.provider.resource
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


def test_nothing_is_kept_of_requests_that_have_ended(process: Make) -> None:
    served = process(rate=0.5, slow_seconds=SLOW)
    for end in itertools.islice(itertools.cycle((lambda _: None, Span.is_recording)), 50):
        ask(served.tracer, end)
    assert not served.processor._requests


def test_a_request_holds_so_many_spans(process: Make) -> None:
    served = process(rate=0.0, slow_seconds=SLOW)
    request = served.tracer.start_span("request", Context())
    for _ in range(2 * MAX_HELD):
        with within(served.tracer, "part", request):
            pass
    (held,) = served.processor._requests.values()
    assert len(held.ended) == MAX_HELD


def test_without_a_bound_nothing_is_recorded_that_is_not_chosen(process: Make) -> None:
    span = process(rate=0.0).tracer.start_span("request", Context())
    assert not span.is_recording()
    assert span.get_span_context().is_valid, "the next process learns that nobody wants it"
