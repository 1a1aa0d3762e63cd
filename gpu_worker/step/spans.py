"""Spans of the worker: one for each traced sequence, and below it those of its steps that explain something.

    worker.sequence     from the plan that brings the sequence to the end of its last step
    ├─ worker.prefill   a step that computed a chunk of its prompt
    └─ worker.step      a step that computed a later token of it, and took far longer than the others

A step serves many requests. Its span says what the batch was made of, and is linked to the other sequences in
it whose traces are sent. Ordinary steps have no span: a token costs two additions, a comparison and an
assignment. While it is not known whether a sequence's trace is sent, no spans of its steps are made: most
never are. Without a traced sequence a step costs one look into an empty dictionary.
"""

import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.trace import Link, Status, StatusCode

from ops.runtime.light_spans import LightSpan
from ops.runtime.telemetry import incoming
from ops.runtime.trace_sampling import LONGEST_WAIT
from proto import arrays
from proto.worker_pb2 import NewSlot, StepPlan, StepResult

MAX_STEPS = 100
"""Spans of steps of one sequence; further steps are only counted."""
SLOW_SECONDS = 0.05
"""A shorter step is never slow."""
SLOW_TIMES = 3.0
"""Times the mean of the sequence's steps that a slow step takes."""

tracer = trace.get_tracer("quire.worker")


@dataclass(slots=True, eq=False)
class _Traced:
    """A traced sequence."""

    span: LightSpan
    new: NewSlot
    plan: StepPlan
    """The plan that brought the sequence."""
    known: int
    """Number of tokens that the sequence had when it got its slot. A row that computes some of them is a part
    of the sequence's prefill."""
    prefilled: bool = False
    """The prefill has ended: a row that begins behind it has been planned."""
    steps: int = 0
    """Number of its steps so far, without those of its prefill."""
    seconds: float = 0.0
    """Time that these steps took together."""
    longest: float = 0.0
    """Seconds of its longest step."""
    until: int | None = None
    """When its latest step ended, in nanoseconds. The worker may hear much later that its slot is free."""
    shown: int = 0
    """Steps that have spans."""
    kept: "list[_Shown]" = field(default_factory=list)
    """Steps whose spans are made only if the trace is sent."""

    @property
    def mean(self) -> float:
        """Seconds of one of its steps."""
        return self.seconds / self.steps

    def fail(self, message: str) -> None:
        if self.span.is_recording():  # its slot may have been freed while the step was under way
            self.span.set_status(Status(StatusCode.ERROR, message))

    def show(self, name: str, step: "TracedStep", row: int, duration_us: int) -> None:
        """A step that has just ended has a span. `row`: the sequence's in it."""
        self.shown += 1
        if self.shown > MAX_STEPS:
            return
        shown = _Shown(name, step, row, time.time_ns(), duration_us)
        if self.span.request.sent:
            shown.draw(self.span)
        elif self.span.is_recording():
            self.kept.append(shown)

    def end(self) -> None:
        self.span.attributes[LONGEST_WAIT] = self.longest
        self.span.complete = self._complete
        self.span.end(self.until)
        self.span.complete, self.kept = None, []  # they lead back here

    def _complete(self, span: LightSpan) -> None:
        new, blocks = self.new, self.new.block_ids
        images = {"quire.images": len(new.images)} if new.images else {}
        span.attributes |= images | {
            "quire.slot": new.slot,
            "quire.sequence_index": new.sequence_index,
            "quire.tokens": self.known,
            "quire.prompt_tokens": new.prompt_length,
            "quire.cached_blocks": len(blocks) // 4,
            "quire.blocks_swapped_in": _number_in_both(blocks, self.plan.swap_in.blocks),
            "quire.steps": self.steps,
        }
        for shown in self.kept:
            shown.draw(span)


@dataclass
class TracedStep:
    """A step with traced sequences in it."""

    plan: StepPlan
    slots: bytes
    """Of its rows, as in the plan."""
    sequences: dict[int, _Traced]
    """By row."""
    prefilling: Sequence[int]
    """The rows that are chunks of prompts."""
    decoding: Sequence[_Traced]
    """The sequences of all other rows."""

    @cached_property
    def starts(self) -> "array[int]":
        return _int32s(self.plan.rows.starts)

    @cached_property
    def made_of(self) -> dict[str, int]:
        """What its batch was made of."""
        return _made_of(self)


class _Shown(NamedTuple):
    """A step that has a span."""

    name: str
    step: TracedStep
    row: int
    end: int
    """Nanoseconds."""
    duration_us: int

    def draw(self, sequence: LightSpan) -> None:
        """Make the span, below that of its row's sequence."""
        name, step, row, end, duration_us = self
        attributes = {
            "quire.row_start": step.starts[row],
            "quire.row_tokens": _int32s(step.plan.rows.counts)[row],
            **step.made_of,
        }
        links, start = _Others(step.sequences, row), end - duration_us * 1000
        sequence.child(name, attributes=attributes, links=links, start_time=start).end(end)


class _Others(Iterable[Link]):
    """Links to the sequences of a step but one whose traces are sent, as is known when they are asked for."""

    def __init__(self, sequences: Mapping[int, _Traced], row: int) -> None:
        """`sequences`: by row. `row`: of the one that is left out."""
        self._sequences, self._row = sequences, row

    def __iter__(self) -> Iterator[Link]:
        for row, traced in self._sequences.items():
            if row != self._row and traced.span.request.sent:
                yield Link(traced.span.context)


class Spans:
    """The spans of one Execute call."""

    def __init__(self) -> None:
        self._sequences: dict[int, _Traced] = {}
        """By slot."""
        self._latest: TracedStep | None = None
        """The latest step, if its rows would be the same sequences today."""

    def begin(self, plan: StepPlan) -> TracedStep | None:
        """To be called before each step. None if no traced sequence is in it."""
        if self._sequences and (freed := plan.freed_slots):
            for slot in _int32s(freed):
                self._end(slot)
        for new in plan.new_slots:
            if new.traceparent:
                self._begin(new, plan)
        if not self._sequences:
            return None
        slots, latest = plan.rows.slots, self._latest
        if latest is not None and latest.slots == slots and not latest.prefilling:  # so it is nearly always
            self._latest = TracedStep(plan, slots, latest.sequences, (), latest.decoding)
        else:
            self._latest = self._step(plan, slots)
        return self._latest

    def end(self, step: TracedStep | None, result: StepResult) -> None:
        """A step has been computed. Any thread may call this, in the order of the steps."""
        if step is None:
            return
        seconds, now = result.duration_us / 1e6, time.time_ns()
        for row in step.prefilling:
            traced = step.sequences[row]
            traced.longest, traced.until = max(traced.longest, seconds), now
            traced.show("worker.prefill", step, row, result.duration_us)
        if seconds > SLOW_SECONDS:
            for row, traced in step.sequences.items():
                if traced.steps and row not in step.prefilling and seconds > SLOW_TIMES * traced.mean:
                    traced.show("worker.step", step, row, result.duration_us)
        for traced in step.decoding:  # each token comes by here
            traced.steps += 1
            traced.seconds += seconds
            traced.until = now
            if seconds > traced.longest:
                traced.longest = seconds
        for error in result.errors:
            if failed := step.sequences.get(error.row):
                failed.fail(error.message)

    def fail(self, step: TracedStep | None, error: Exception) -> None:
        """A step has raised an error, for which the call ends."""
        if step is not None:
            for traced in step.sequences.values():
                traced.fail(f"step {step.plan.step}: {error}")

    def close(self) -> None:
        """End all spans, because the call is over."""
        for slot in list(self._sequences):
            self._end(slot)

    def _step(self, plan: StepPlan, slots: bytes) -> TracedStep | None:
        """A step whose rows are other sequences than those of the one before, or prompts."""
        of_slot = self._sequences
        found = {row: of_slot[slot] for row, slot in enumerate(_int32s(slots)) if slot in of_slot}
        if not found:
            return None
        prefilling: list[int] = []
        decoding: list[_Traced] = []
        step = TracedStep(plan, slots, found, prefilling, decoding)
        for row, traced in found.items():
            if not traced.prefilled:
                traced.prefilled = step.starts[row] >= traced.known
            if traced.prefilled:
                decoding.append(traced)
            else:
                prefilling.append(row)
        return step

    def _begin(self, new: NewSlot, plan: StepPlan) -> None:
        self._end(new.slot)
        span = tracer.start_span("worker.sequence", incoming((("traceparent", new.traceparent),)))
        if isinstance(span, LightSpan):
            known = new.forked_tokens + len(new.tokens) // 4
            self._sequences[new.slot] = _Traced(span, new, plan, known)
            self._latest = None

    def _end(self, slot: int) -> None:
        if traced := self._sequences.pop(slot, None):
            self._latest = None
            traced.end()


def _made_of(step: TracedStep) -> dict[str, int]:
    """What the batch of a step was made of."""
    plan = step.plan
    counts = _int32s(plan.rows.counts)
    # A row that computes more than it samples is a chunk of a prompt. Drafts are all sampled.
    chunks = [count for count, sampled in zip(counts, plan.rows.samples, strict=False) if count > sampled]
    return {
        "quire.step": plan.step,
        "quire.rows": len(step.slots) // 4,
        "quire.tokens": sum(counts),
        "quire.prefill_rows": len(chunks),
        "quire.prefill_tokens": sum(chunks),
        "quire.draft_tokens": len(plan.draft_tokens) // 4,
        "quire.blocks_copied": len(plan.copies.targets) // 4,
        "quire.blocks_swapped_in": len(plan.swap_in.blocks) // 4,
        "quire.blocks_swapped_out": len(plan.swap_out.blocks) // 4,
    }


def _number_in_both(blocks: bytes, others: bytes) -> int:
    """Of two arrays."""
    return len(set(_int32s(blocks)) & set(_int32s(others))) if others else 0


def _int32s(packed: bytes) -> "array[int]":
    """The whole numbers of an array. A malformed one loses its last bytes here; the runner refuses it."""
    return arrays.unpack(packed[: len(packed) // 4 * 4])
