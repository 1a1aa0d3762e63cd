"""Every change of state shows on the request's span and in the log, as far as anybody looks."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import INVALID_SPAN, Span

from scheduler_svc import states
from scheduler_svc.core.fleet import Fleet

ALONE = ["WAITING", "PREFILL", "DECODE", "DONE"]


def new_span() -> Span:
    return TracerProvider().get_tracer("test").start_span("scheduler.generate")


def told(span: Span, index: int = 0) -> list[tuple[str, dict[str, Any]]]:
    """Events of one of its sequences, without the index."""
    assert isinstance(span, ReadableSpan)
    facts = [(event.name, dict(event.attributes or {})) for event in span.events]
    return [(name, rest) for name, rest in facts if rest.pop("quire.sequence_index") == index]


def names(span: Span, index: int = 0) -> list[str]:
    return [name for name, _ in told(span, index)]


@pytest.fixture
def run(fake: SimpleNamespace) -> Callable[..., list[Span]]:
    """Serve requests to their end; the span of each."""

    def serve(*requests: Any, **limits: float) -> list[Span]:
        fleet = Fleet(1000)
        scheduler, _ = fleet.add_worker(fake.limits(**limits))
        worker = fake.StrictWorker(scheduler.limits)
        spans = [new_span() for _ in requests]
        for request, span in zip(requests, spans, strict=True):
            fleet.accept(request, states.events(span))
        while (plan := scheduler.plan()) is not None:
            fleet.settle(scheduler, scheduler.complete(worker.execute(plan)))
        return spans

    return serve


def test_a_request_goes_through_its_states(fake: SimpleNamespace, run: Callable[..., list[Span]]) -> None:
    (span,) = run(fake.request([1, 2, 3, 4, 5], max_tokens=4))
    assert names(span) == ALONE
    computed = [facts["quire.computed_tokens"] for _, facts in told(span)]
    assert computed == [0, 0, 0, 5 + 3]


def test_a_preemption_says_what_is_kept_and_what_is_lost(
    fake: SimpleNamespace, run: Callable[..., list[Span]]
) -> None:
    requests = [fake.request([number] * 9, name=f"r{number}", max_tokens=16) for number in range(3)]
    spans = run(*requests, num_blocks=14, host_blocks=20)
    assert names(spans[0]) == ALONE
    (victim,) = (span for span in spans if "PREEMPTED" in names(span))
    assert names(victim) == ["WAITING", "PREFILL", "DECODE", "PREEMPTED", "PREFILL", "DECODE", "DONE"]
    _, _, _, (_, lost), (_, back), *_ = told(victim)
    assert lost["quire.kept_tokens"] == lost["quire.computed_tokens"] // 4 * 4 > 0
    assert lost["quire.kept_tokens"] + lost["quire.lost_tokens"] >= lost["quire.computed_tokens"]
    assert back["quire.computed_tokens"] == lost["quire.kept_tokens"], "with host memory all of it comes back"


def test_samples_fork(fake: SimpleNamespace, run: Callable[..., list[Span]]) -> None:
    (span,) = run(fake.request([1, 2, 3, 4, 5], n=2, max_tokens=4))
    assert names(span, 0) == ALONE
    assert names(span, 1) == ["WAITING", "FORK", "PREFILL", "DECODE", "DONE"]


def test_a_lost_worker_shows(fake: SimpleNamespace) -> None:
    span, fleet = new_span(), Fleet(1000)
    scheduler, _ = fleet.add_worker(fake.limits())
    fleet.accept(fake.request([1, 2]), states.events(span))
    scheduler.plan()
    fleet.remove_worker(scheduler)
    assert names(span) == ["WAITING", "PREFILL", "DECODE", "WAITING"]


def test_a_span_has_an_end(fake: SimpleNamespace) -> None:
    """However often a request is preempted."""
    span, fleet = new_span(), Fleet(1000)
    watch = states.events(span)
    assert watch is not None
    group, _ = fleet.accept(fake.request([1, 2]), watch)
    for _ in range(500):
        watch(group.sequences[0])
    assert len(names(span)) == states.MAX_EVENTS
    assert watch.totals() == {"quire.state_changes": 501, "quire.preemptions": 0}


def test_the_log_tells_it_at_debug(
    fake: SimpleNamespace, run: Callable[..., list[Span]], caplog: pytest.LogCaptureFixture
) -> None:
    assert states.events(INVALID_SPAN) is None, "nobody looks"
    caplog.set_level(logging.DEBUG, "scheduler_svc")
    assert states.events(INVALID_SPAN) is not None
    run(fake.request([1, 2, 3], name="mine", max_tokens=2))
    named = [message.split(",")[0] for message in caplog.messages]
    assert named == [f"request mine: {name}" for name in ALONE]
    assert caplog.messages[-1] == "request mine: DONE, sequence_index 0, computed_tokens 4"
