"""Every change of state shows on the request's span and in the log, as far as anybody looks."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN, StatusCode

from ops.runtime.light_spans import LightSpan, LightTracerProvider
from ops.runtime.trace_sampling import Sampling
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.state_spans import MAX_SPANS, RequestStates, states_of
from tests.support.spans import Converted

ALONE = ["waiting", "prefill", "decode"]


class Traced:
    """A request's span and those below it."""

    def __init__(self, rate: float = 1.0) -> None:
        """`rate`: 0: they are sent if it fails, and made when it has ended."""
        self._exporter = InMemorySpanExporter()
        sending = SimpleSpanProcessor(Converted(self._exporter))
        provider = LightTracerProvider(Sampling(rate, slow_seconds=60.0), sending)
        span = provider.get_tracer("test").start_span("scheduler.generate")
        states = states_of(span)
        assert states is not None
        assert isinstance(span, LightSpan)
        self.span, self.states = span, states

    def told(self, index: int = 0) -> list[tuple[str, dict[str, Any]]]:
        """What is recorded of one of its sequences, without the index."""
        spans = sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        facts = [(span.name.removeprefix("scheduler."), dict(span.attributes or {})) for span in spans]
        return [(name, rest) for name, rest in facts if rest.pop("quire.sequence_index", None) == index]

    def names(self, index: int = 0) -> list[str]:
        return [name for name, _ in self.told(index)]

    def events(self) -> list[tuple[str, str]]:
        """Each event, with the span that has it."""
        self.span.end()
        return [
            (span.name, event.name) for span in self._exporter.get_finished_spans() for event in span.events
        ]


@pytest.fixture
def run(fake: SimpleNamespace) -> Callable[..., list[Traced]]:
    """Serve requests to their end; what is recorded of each."""

    def serve(*requests: Any, **limits: float) -> list[Traced]:
        fleet = Fleet(1000)
        scheduler, _ = fleet.add_worker(fake.limits(**limits))
        worker = fake.StrictWorker(scheduler.limits)
        traced = [Traced() for _ in requests]
        for request, each in zip(requests, traced, strict=True):
            fleet.accept(request, each.states)
        while (plan := scheduler.plan()) is not None:
            fleet.settle(scheduler, scheduler.complete(worker.execute(plan)))
        return traced

    return serve


def test_a_request_goes_through_its_states(fake: SimpleNamespace, run: Callable[..., list[Traced]]) -> None:
    (traced,) = run(fake.request([1, 2, 3, 4, 5], max_tokens=4))
    assert traced.names() == ALONE
    (_, waiting), (_, prefill), (_, decode) = traced.told()
    assert waiting == {"quire.computed_tokens": 0}
    assert prefill == {"quire.tokens": 5, "quire.cached_tokens": 0, "quire.after": "waiting"}
    assert decode == {"quire.computed_tokens": 0, "quire.after": "prefill"}


def test_a_cached_prefix_shows(fake: SimpleNamespace, run: Callable[..., list[Traced]]) -> None:
    prompt = list(range(1, 10))
    fleet, (first, second) = Fleet(1000), (Traced(), Traced())
    scheduler, _ = fleet.add_worker(fake.limits())
    worker = fake.StrictWorker(scheduler.limits)
    for name, traced in (("a", first), ("b", second)):
        fleet.accept(fake.request(prompt, name=name, max_tokens=2), traced.states)
        while (plan := scheduler.plan()) is not None:
            fleet.settle(scheduler, scheduler.complete(worker.execute(plan)))
    assert dict(first.told())["prefill"]["quire.cached_tokens"] == 0
    assert dict(second.told())["prefill"]["quire.cached_tokens"] == 8


def test_a_preemption_says_what_is_kept_and_what_is_lost(
    fake: SimpleNamespace, run: Callable[..., list[Traced]]
) -> None:
    requests = [fake.request([number] * 9, name=f"r{number}", max_tokens=16) for number in range(3)]
    served = run(*requests, num_blocks=14, host_blocks=20)
    assert served[0].names() == ALONE
    (victim,) = (each for each in served if "preempted" in each.names())
    assert victim.names() == [*ALONE, "preempted", "prefill", "decode"]
    _, _, _, (_, lost), (_, back), _ = victim.told()
    assert lost["quire.kept_tokens"] == lost["quire.computed_tokens"] // 4 * 4 > 0
    assert lost["quire.kept_tokens"] + lost["quire.lost_tokens"] >= lost["quire.computed_tokens"]
    assert back["quire.cached_tokens"] == lost["quire.kept_tokens"], "with host memory all of it comes back"
    assert (lost["quire.after"], back["quire.after"]) == ("decode", "preempted")
    assert victim.states.preemptions == 1


def test_samples_fork(fake: SimpleNamespace, run: Callable[..., list[Traced]]) -> None:
    (traced,) = run(fake.request([1, 2, 3, 4, 5], n=2, max_tokens=4))
    assert traced.names(0) == ALONE
    assert traced.names(1) == ["waiting", "fork", "prefill", "decode"]


def test_a_request_that_fails_shows_the_same(fake: SimpleNamespace) -> None:
    """Although its spans are made when it has ended."""
    told, events, spans = [], [], []
    for rate in (1.0, 0.0):
        traced, fleet = Traced(rate), Fleet(1000)
        group, _ = fleet.accept(fake.request([1, 2, 3], max_tokens=2, n=2), traced.states)
        scheduler, _ = fleet.add_worker(fake.limits())
        plan = scheduler.plan()
        assert plan is not None
        scheduler.complete(fake.StrictWorker(scheduler.limits).execute(plan))
        traced.states.tokens()
        for _ in range(MAX_SPANS):
            traced.states(group.sequences[1])
        fleet.cancel(group)
        traced.states.close()
        assert bool(traced.names()) == (rate == 1.0)
        traced.span.set_status(StatusCode.ERROR)
        events.append(traced.events())
        told.append([traced.told(index) for index in range(2)])
        spans.append(traced._exporter.get_finished_spans())
    assert told[0] == told[1]
    assert events[0] == events[1] == [("scheduler.generate", "first token")]
    for sent in spans:
        assert len(sent) == MAX_SPANS + 1
        assert all(span.start_time <= span.end_time <= sent[-1].end_time for span in sent)


def test_a_lost_worker_shows(fake: SimpleNamespace) -> None:
    traced, fleet = Traced(), Fleet(1000)
    scheduler, _ = fleet.add_worker(fake.limits())
    fleet.accept(fake.request([1, 2]), traced.states)
    scheduler.plan()
    fleet.remove_worker(scheduler)
    traced.states.close()
    assert traced.names() == [*ALONE, "waiting"]
    assert traced.told()[-1][1]["quire.after"] == "decode"


def test_a_request_that_is_cancelled_leaves_no_span_open(fake: SimpleNamespace) -> None:
    traced, fleet = Traced(), Fleet(1000)
    group, _ = fleet.accept(fake.request([1, 2], n=3), traced.states)
    fleet.cancel(group)
    traced.states.close()
    assert [traced.names(index) for index in range(3)] == [["waiting"]] * 3


def test_a_span_has_an_end(fake: SimpleNamespace) -> None:
    """However often a request is preempted."""
    traced, fleet = Traced(), Fleet(1000)
    group, _ = fleet.accept(fake.request([1, 2]), traced.states)
    for _ in range(500):
        traced.states(group.sequences[0])
    traced.states.close()
    assert len(traced.names()) == MAX_SPANS
    attributes = dict(traced.span.attributes or {})
    assert attributes.pop("quire.longest_wait_seconds") > 0
    assert attributes == {"quire.state_changes": 501, "quire.preemptions": 0}


@pytest.mark.parametrize(("n", "holder"), [(1, "scheduler.decode"), (2, "scheduler.generate")])
def test_the_first_token_and_pauses_are_events(fake: SimpleNamespace, n: int, holder: str) -> None:
    times = iter([0.0, 1.0, 1.01, 1.02, 1.5, 1.51, 9.0, 9.0])
    traced, fleet = Traced(), Fleet(1000)
    traced.states = RequestStates(traced.span, lambda: next(times))
    scheduler, _ = fleet.add_worker(fake.limits())
    fleet.accept(fake.request([1, 2], n=n), traced.states)
    worker = fake.StrictWorker(scheduler.limits)
    for _ in range(3):
        plan = scheduler.plan()
        assert plan is not None
        scheduler.complete(worker.execute(plan))
    for _ in range(6):
        traced.states.tokens()
    traced.states.close()
    assert traced.span.attributes["quire.longest_wait_seconds"] == 7.49
    assert traced.events() == [(holder, name) for name in ("first token", "pause", "pause")]


def test_the_log_tells_it_at_debug(
    fake: SimpleNamespace, run: Callable[..., list[Traced]], caplog: pytest.LogCaptureFixture
) -> None:
    assert states_of(INVALID_SPAN) is None, "nobody looks"
    caplog.set_level(logging.DEBUG, "scheduler_svc")
    assert states_of(INVALID_SPAN) is not None
    run(fake.request([1, 2, 3], name="mine", max_tokens=2))
    named = [message.split(",")[0] for message in caplog.messages]
    assert named == [f"request mine: {name.upper()}" for name in (*ALONE, "done")]
    assert caplog.messages[-1] == "request mine: DONE, sequence_index 0, computed_tokens 4"
