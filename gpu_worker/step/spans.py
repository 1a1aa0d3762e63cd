"""Spans of the worker: one for each traced sequence, and one for each step with a traced sequence.

A sequence's span is a child of its request's span. It lasts from the plan that brings the sequence to the
plan that frees its slot. A step serves many requests. So its span has no parent, and a link to the span of
each traced sequence. Without a traced sequence a step costs one look into an empty dictionary.
"""

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, Span, Status, StatusCode

from ops.runtime.telemetry import incoming
from proto import arrays
from proto.worker_pb2 import NewSlot, StepPlan, StepResult

tracer = trace.get_tracer("quire.worker")


class Spans:
    """The spans of one Execute call."""

    def __init__(self) -> None:
        self._sequences: dict[int, Span] = {}

    def admit(self, plan: StepPlan) -> None:
        """End the spans of freed slots and begin those of new sequences. To be called before the step."""
        if self._sequences:
            for slot in _int32s(plan.freed_slots):
                self._end(slot)
        for new in plan.new_slots:
            if new.traceparent:
                self._begin(new)

    def step(self, plan: StepPlan) -> Span:
        """Begin the step's span. A span that records nothing if the step has no traced sequence."""
        if not self._sequences:
            return INVALID_SPAN
        slots = _int32s(plan.rows.slots)
        links = [Link(self._sequences[slot].get_span_context()) for slot in slots if slot in self._sequences]
        if not links:
            return INVALID_SPAN
        span = tracer.start_span("worker.step", context=Context(), links=links)
        tokens = sum(_int32s(plan.rows.counts))
        span.set_attributes({"quire.step": plan.step, "quire.rows": len(slots), "quire.tokens": tokens})
        return span

    def fail(self, plan: StepPlan, result: StepResult) -> None:
        """Record the errors of rows in the spans of their sequences."""
        if not self._sequences or not result.errors:
            return
        slots = _int32s(plan.rows.slots)
        for error in result.errors:
            if span := self._sequences.get(slots[error.row]):
                span.set_status(Status(StatusCode.ERROR, error.message))

    def close(self) -> None:
        """End all spans, because the call is over."""
        for slot in list(self._sequences):
            self._end(slot)

    def _begin(self, new: NewSlot) -> None:
        self._end(new.slot)
        parent = incoming((("traceparent", new.traceparent),))
        span = tracer.start_span("worker.sequence", context=parent)
        if span.is_recording():
            span.set_attributes(
                {
                    "quire.slot": new.slot,
                    "quire.sequence_index": new.sequence_index,
                    "quire.tokens": len(new.tokens) // 4,
                    "quire.prompt_tokens": new.prompt_length,
                    "quire.cached_blocks": len(new.block_ids) // 4,
                }
            )
            self._sequences[new.slot] = span

    def _end(self, slot: int) -> None:
        if span := self._sequences.pop(slot, None):
            span.end()


def _int32s(packed: bytes) -> list[int]:
    """The whole numbers of an array. A malformed one loses its last bytes here; the runner refuses it."""
    return arrays.unpack(packed[: len(packed) // 4 * 4]).tolist()
