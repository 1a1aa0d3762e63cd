"""A traced sequence is one span; a step's span is linked to those that it serves."""

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.step import spans
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


def run(tracked, plan, errors=()):
    tracked.admit(plan)
    tracked.step(plan).end()
    tracked.fail(plan, StepResult(step=plan.step, errors=errors))


def test_sequence_and_steps(make, exporter) -> None:
    tracked = spans.Spans()
    news = [make.slot(0, [1, 2], [], traceparent=PARENT), make.slot(1, [1], [])]
    run(tracked, make.plan(1, [(1, 0, 1, 1), (0, 0, 2, 1)], new_slots=news))
    run(tracked, make.plan(2, [(1, 1, 1, 1)]))
    run(tracked, make.plan(3, freed_slots=[0, 1]))
    run(tracked, make.plan(4, [(0, 0, 1, 1)], new_slots=[make.slot(0, [1], [])]))
    step, sequence = exporter.get_finished_spans()
    assert (step.name, sequence.name) == ("worker.step", "worker.sequence")
    assert f"{sequence.context.trace_id:032x}" == TRACE
    assert f"{sequence.parent.span_id:016x}" == PARENT.split("-")[2]
    assert step.parent is None
    assert [link.context for link in step.links] == [sequence.context]
    assert step.attributes["quire.tokens"] == 3


def test_a_row_s_error_is_on_its_sequence(make, exporter) -> None:
    tracked = spans.Spans()
    new = make.slot(0, [1, 2], [], traceparent=PARENT)
    run(tracked, make.plan(1, [(0, 0, 2, 1)], new_slots=[new]), [RowError(row=0, message="no block")])
    tracked.close()
    sequence = exporter.get_finished_spans()[-1]
    assert (sequence.name, sequence.status.description) == ("worker.sequence", "no block")


def test_without_a_provider_nothing_is_kept(make) -> None:
    tracked = spans.Spans()
    run(tracked, make.plan(1, [(0, 0, 1, 1)], new_slots=[make.slot(0, [1], [], traceparent=PARENT)]))
    assert not tracked._sequences
