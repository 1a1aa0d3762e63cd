"""A traced sequence is one span; below it are those of its steps that explain something."""

import time

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.step import spans
from ops.runtime.trace_sampling import LONGEST_WAIT, Sampling
from proto import arrays
from proto.worker_pb2 import RowError, StepResult
from tests.support.spans import exported_to
from tests.unit.gpu_worker.conftest import makers

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def make():
    """Of plans: nothing is computed here."""
    return makers(ReferenceKernels())


@pytest.fixture
def exporter(monkeypatch):
    return exported_to(InMemorySpanExporter(), monkeypatch, spans)


def run(tracked, plan, errors=(), milliseconds=1):
    tracked.end(
        tracked.begin(plan), StepResult(step=plan.step, errors=errors, duration_us=milliseconds * 1000)
    )


def names(exporter):
    return [span.name for span in exporter.get_finished_spans()]


def test_a_sequence_and_the_chunks_of_its_prompt(make, exporter) -> None:
    tracked = spans.Spans()
    news = [make.slot(0, [1, 2, 3], [7, 8], traceparent=PARENT), make.slot(1, [1], [])]
    # (slot, start, tokens, samples)
    run(tracked, make.plan(1, [(1, 0, 1, 1), (0, 0, 2, 0)], new_slots=news), milliseconds=40)
    run(tracked, make.plan(2, [(1, 1, 1, 1), (0, 2, 1, 1)]))
    run(tracked, make.plan(3, [(1, 2, 1, 1), (0, 3, 1, 1)]))
    run(tracked, make.plan(4, freed_slots=[0, 1]))
    run(tracked, make.plan(5, [(0, 0, 1, 1)], new_slots=[make.slot(0, [1], [])]))
    assert names(exporter) == ["worker.prefill", "worker.prefill", "worker.sequence"]
    first, second, sequence = exporter.get_finished_spans()
    assert f"{sequence.context.trace_id:032x}" == TRACE
    assert f"{sequence.parent.span_id:016x}" == PARENT.split("-")[2]
    assert first.parent == second.parent == sequence.context
    assert first.end_time - first.start_time == 40_000_000
    rows = [
        (chunk.attributes["quire.row_start"], chunk.attributes["quire.row_tokens"])
        for chunk in (first, second)
    ]
    assert rows == [(0, 2), (2, 1)]
    assert first.attributes["quire.step"] == 1
    assert (first.attributes["quire.rows"], first.attributes["quire.tokens"]) == (2, 3)
    assert (first.attributes["quire.prefill_rows"], first.attributes["quire.prefill_tokens"]) == (1, 2)
    assert sequence.attributes["quire.cached_blocks"] == 2
    assert sequence.attributes["quire.steps"] == 1, "its prefill is not counted"
    assert sequence.attributes[LONGEST_WAIT] == 0.04


def test_a_slow_step_is_shown_and_linked_to_the_others_in_it(make, exporter) -> None:
    tracked = spans.Spans()
    news = [make.slot(slot, [1], [], traceparent=PARENT) for slot in (0, 1)]
    run(tracked, make.plan(1, [(0, 0, 1, 1), (1, 0, 1, 1)], new_slots=news))
    for step in range(2, 9):
        slow = step in (3, 7)
        run(tracked, make.plan(step, [(0, step, 1, 1)]), milliseconds=60 if slow else 49)
    run(tracked, make.plan(9, [(0, 9, 1, 1), (1, 2, 1, 1)]), milliseconds=400)
    tracked.close()
    assert names(exporter)[2:] == ["worker.step", "worker.sequence", "worker.sequence"]
    step, one, other = exporter.get_finished_spans()[2:]
    assert (step.parent, [link.context for link in step.links]) == (one.context, [other.context])
    assert step.attributes["quire.step"] == 9
    assert (one.attributes["quire.steps"], other.attributes["quire.steps"]) == (8, 1)


def test_links_are_made_when_they_are_sent_and_lead_to_what_is_sent(make, exporter, monkeypatch) -> None:
    tracked = spans.Spans()
    monkeypatch.setattr(spans.tracer._provider, "sampling", Sampling(slow_seconds=5.0))
    parents = [PARENT, PARENT.removesuffix("1") + "0", PARENT, PARENT.removesuffix("1") + "0"]
    news = [make.slot(slot, [1], [], traceparent=parent) for slot, parent in enumerate(parents)]
    step = tracked.begin(make.plan(1, [(slot, 0, 1, 1) for slot in range(4)], new_slots=news))
    tracked.end(step, StepResult(step=1, duration_us=1000))
    links, contexts = spans._Others(step.sequences, 2), [step.sequences[row].span.context for row in range(4)]
    assert [link.context for link in links] == contexts[:1]
    tracked.end(step, StepResult(step=1, errors=[RowError(row=3, message="no block")]))
    tracked.close()
    assert [link.context for link in links] == [contexts[0], contexts[3]], "its error has come since"


def test_a_sequence_that_fails_shows_the_same(make, exporter, monkeypatch) -> None:
    """Although the spans of its steps are made when it has ended."""
    monkeypatch.setattr(spans.tracer._provider, "sampling", Sampling(slow_seconds=5.0))
    found = []
    for parent in (PARENT, PARENT.removesuffix("1") + "0"):
        tracked = spans.Spans()
        run(
            tracked, make.plan(1, [(0, 0, 2, 0)], new_slots=[make.slot(0, [1, 2, 3], [], traceparent=parent)])
        )
        for step in range(2, 6):
            run(tracked, make.plan(step, [(0, step, 1, 1)]), milliseconds=400 if step == 5 else 1)
        sent = names(exporter)
        assert sent == (["worker.prefill"] * 2 + ["worker.step"] if parent == PARENT else [])
        run(tracked, make.plan(6, [(0, 6, 1, 1)]), [RowError(row=0, message="no block")])
        tracked.close()
        found.append([(span.name, dict(span.attributes)) for span in exporter.get_finished_spans()])
        exporter.clear()
    assert found[0] == found[1]
    assert found[0][-1][0] == "worker.sequence"


def test_a_sequence_ends_with_its_last_step(make, exporter) -> None:
    """Not when the worker hears that its slot is free, which may be later."""
    tracked = spans.Spans()
    run(tracked, make.plan(1, [(0, 0, 1, 1)], new_slots=[make.slot(0, [1], [], traceparent=PARENT)]))
    run(tracked, make.plan(2, [(0, 1, 1, 1)]))
    ended = time.time_ns()
    time.sleep(0.01)
    tracked.close()
    (sequence,) = (span for span in exporter.get_finished_spans() if span.name == "worker.sequence")
    assert sequence.start_time < sequence.end_time <= ended


def test_what_came_back_from_host_memory(make, exporter) -> None:
    tracked = spans.Spans()
    new = make.slot(0, [1, 2], [4, 5, 6], traceparent=PARENT)
    plan = make.plan(1, [(0, 1, 1, 1)], new_slots=[new])
    plan.swap_in.blocks, plan.swap_in.host_slots = arrays.pack([5, 6, 9]), arrays.pack([0, 1, 2])
    run(tracked, plan)
    tracked.close()
    step, sequence = exporter.get_finished_spans()
    assert sequence.attributes["quire.blocks_swapped_in"] == 2
    assert step.attributes["quire.blocks_swapped_in"] == 3


def test_images_are_counted(make, exporter) -> None:
    tracked = spans.Spans()
    new = make.slot(0, [1, 2], [], traceparent=PARENT)
    new.images.add(position=0, tokens=1, rows=1, columns=1)
    run(tracked, make.plan(1, [(0, 1, 1, 1)], new_slots=[new]))
    tracked.close()
    *_, sequence = exporter.get_finished_spans()
    assert sequence.attributes["quire.images"] == 1


def test_spans_of_steps_have_an_end(make, exporter) -> None:
    tracked = spans.Spans()
    prompt = [1] * 2 * spans.MAX_STEPS
    run(tracked, make.plan(1, [(0, 0, 1, 0)], new_slots=[make.slot(0, prompt, [], traceparent=PARENT)]))
    for step in range(2, len(prompt)):
        run(tracked, make.plan(step, [(0, step - 1, 1, 0)]))
    assert names(exporter) == ["worker.prefill"] * spans.MAX_STEPS


def test_a_row_s_error_is_on_its_sequence(make, exporter) -> None:
    tracked = spans.Spans()
    new = make.slot(0, [1, 2], [], traceparent=PARENT)
    run(tracked, make.plan(1, [(0, 0, 2, 1)], new_slots=[new]), [RowError(row=0, message="no block")])
    tracked.close()
    sequence = exporter.get_finished_spans()[-1]
    assert (sequence.name, sequence.status.description) == ("worker.sequence", "no block")


def test_a_step_that_raises_is_on_all_in_it(make, exporter) -> None:
    tracked = spans.Spans()
    news = [make.slot(slot, [1, 2], [], traceparent=PARENT) for slot in (0, 1)]
    tracked.fail(None, ValueError("of nobody's"))
    tracked.fail(tracked.begin(make.plan(1, [(0, 0, 2, 1)], new_slots=news)), ValueError("no memory"))
    tracked.close()
    failed, other = exporter.get_finished_spans()
    assert failed.status.description == "step 1: no memory"
    assert other.status.status_code is StatusCode.UNSET


def test_a_result_may_come_after_its_sequence_has_left(make, exporter, caplog) -> None:
    """Plans are made ahead: the next one may have given the slot to another."""
    tracked = spans.Spans()
    new = make.slot(0, [1, 2], [], traceparent=PARENT)
    step = tracked.begin(make.plan(1, [(0, 0, 2, 1)], new_slots=[new]))
    tracked.begin(make.plan(2, [(0, 0, 1, 1)], freed_slots=[0], new_slots=[make.slot(0, [1], [])]))
    tracked.end(step, StepResult(step=1, errors=[RowError(row=0, message="no block")]))
    assert names(exporter) == ["worker.sequence", "worker.prefill"]
    assert not caplog.records


def test_without_a_provider_nothing_is_kept(make) -> None:
    tracked = spans.Spans()
    run(tracked, make.plan(1, [(0, 0, 1, 1)], new_slots=[make.slot(0, [1], [], traceparent=PARENT)]))
    assert not tracked._sequences


def test_a_slot_s_next_sequence_is_another_one(make, exporter) -> None:
    """Rows of the same slots are taken for rows of the same sequences, while those are there."""
    tracked = spans.Spans()
    rows = [(0, 1, 1, 1), (1, 1, 1, 1)]
    news = [make.slot(slot, [1], [], traceparent=PARENT) for slot in (0, 1)]
    run(tracked, make.plan(1, rows, new_slots=news))
    run(tracked, make.plan(2, rows))
    run(tracked, make.plan(3, rows, new_slots=news[:1], freed_slots=[0]))
    run(tracked, make.plan(4, rows))
    run(tracked, make.plan(5, rows))
    run(tracked, make.plan(6, rows, new_slots=[make.slot(0, [1], [])], freed_slots=[0]))
    run(tracked, make.plan(7, rows), milliseconds=400)
    run(tracked, make.plan(8, rows, new_slots=news[:1], freed_slots=[0]))
    tracked.close()
    first, second, slow, other, last = exporter.get_finished_spans()
    assert [each.attributes["quire.steps"] for each in (first, second, other, last)] == [2, 3, 8, 1]
    assert (slow.parent, slow.links) == (other.context, ())
