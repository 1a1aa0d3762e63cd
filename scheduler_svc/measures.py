"""What a scheduler measures: its batches and their memory, and how long requests wait, compute and write.

The core has no clock and counts nothing for this. It is watched through what passes between it and the
engine: states, plans and results.
"""

import time
from collections.abc import Callable

from ops.runtime import metric_names as names
from ops.runtime.light_spans import is_sampled
from ops.runtime.metrics import METRICS, Metrics
from proto.worker_pb2 import StepResult
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.sequence import Sequence, SequenceGroup, State, Watch


class Measures:
    """The metrics of one scheduler process, for one model."""

    def __init__(self, model: str, metrics: Metrics = METRICS, clock: Callable[[], float] = time.monotonic):
        """`clock`: in seconds."""
        self.clock = clock
        self._metrics, self._model = metrics, model
        self.queue = metrics.histogram(names.QUEUE, model)
        self.prefill = metrics.histogram(names.PREFILL, model)
        self.decode = metrics.histogram(names.DECODE, model)
        self.inference = metrics.histogram(names.INFERENCE, model)
        self.preemptions = metrics.counter(names.PREEMPTIONS, model)
        self.workers_lost = metrics.counter(names.WORKERS_LOST, model)
        self.queries = metrics.counter(names.PREFIX_QUERIES, model)
        self.hits = metrics.counter(names.PREFIX_HITS, model)
        self._drafted_rows = metrics.counter(names.DRAFTED_ROWS, model)
        self.drafts = metrics.counter(names.DRAFT_TOKENS, model)
        self.drafts_held = metrics.counter(names.ACCEPTED_TOKENS, model)
        self._forced = metrics.counter(names.FORCED, model)
        self._steps = metrics.counter(names.STEPS, model)
        self._step_tokens = metrics.histogram(names.ITERATION_TOKENS, model)
        self._step_seconds = metrics.histogram(names.STEP_SECONDS, model)
        self._forked = metrics.counter(names.FORKED, model)
        self._copied = metrics.counter(names.COPIED, model)
        self._swapped_out = metrics.counter(names.SWAPPED_OUT, model)
        self._swapped_in = metrics.counter(names.SWAPPED_IN, model)

    def planned(self, plan: StepPlan) -> None:
        """A worker is given this step."""
        self._steps.add()
        self._step_tokens.observe(sum(plan.rows.counts))
        self._forked.add(sum(1 for new in plan.new_slots if new.forked_from >= 0))
        self._copied.add(len(plan.copies.sources))
        self._swapped_out.add(len(plan.swap_out.blocks))
        self._swapped_in.add(len(plan.swap_in.blocks))

    def computed(self, result: StepResult) -> None:
        """A worker has computed a step."""
        if result.duration_us:
            self._step_seconds.observe(result.duration_us / 1e6)

    def ended(self, group: SequenceGroup, times: "RequestTimes") -> None:
        """A request has ended, or its caller wants no more of it."""
        if not group.unfinished:
            times.complete()
        if group.cached_tokens is not None:
            self.queries.add(len(group.request.prompt))
            self.hits.add(group.cached_tokens)
        self._drafted_rows.add(group.drafted_rows)
        self.drafts.add(group.drafts)
        self.drafts_held.add(group.drafts_held)
        self._forced.add(group.forced_tokens)

    def read(self, fleet: Fleet) -> None:
        """Set what is so at this moment."""
        model, gauge = self._model, self._metrics.gauge
        held = blocks = positions = unfilled = running = 0
        counts = {"held": 0, "idle": 0, "empty": 0, "shared": 0}
        self._metrics.forget(names.CACHE_CONFIG)
        for scheduler in fleet.schedulers:
            limits, batch = scheduler.limits, scheduler.state.batch
            pool = batch.pool
            running += len(batch.running)
            blocks += limits.num_blocks
            held += scheduler.held_blocks
            counts["empty"] += pool.empty_blocks
            counts["idle"] += pool.free_blocks - pool.empty_blocks
            counts["shared"] += pool.shared_blocks
            positions += scheduler.held_blocks * limits.block_size
            unfilled += sum(_unfilled(sequence) for sequence in batch.running)
            size, number = str(limits.block_size), str(limits.num_blocks)
            gauge(names.CACHE_CONFIG, model, size, number).set(1)
        counts["held"] = held
        for state, count in counts.items():
            gauge(names.BLOCKS, model, state).set(count)
        gauge(names.KV_USAGE, model).set(held / blocks if blocks else 0)
        gauge(names.WASTE, model).set(unfilled / positions if positions else 0)
        gauge(names.RUNNING, model).set(running)
        waiting = fleet.waiting().requests
        gauge(names.WAITING, model).set(waiting)
        gauge(names.WAITING_BY_REASON, model, "capacity").set(waiting)
        gauge(names.WORKERS, model).set(len(fleet.schedulers))
        self._metrics.forget(names.LORA)
        if adapters := fleet.adapters:
            lists = (",".join(sorted(each - {""})) for each in fleet.adapters_asked_for())
            gauge(names.LORA, model, str(len(adapters)), *lists).set(time.time())


class RequestTimes:
    """A watch of a request: when it came, got its first place in a batch, and its first token."""

    __slots__ = ("_came", "_first", "_measures", "_placed", "_trace_id", "_watch")

    def __init__(self, measures: Measures, watch: Watch | None, traceparent: str = "") -> None:
        """The request comes now. `watch`: another one, which is called, too. `traceparent`: see `Request`."""
        self._measures, self._watch = measures, watch
        self._trace_id = _recorded_trace(traceparent)
        self._came = measures.clock()
        self._placed = self._first = 0.0

    def __call__(self, sequence: Sequence) -> None:
        """A sequence has begun, or changed its state: see `SequenceGroup.watch`."""
        state = sequence.state
        if state is State.PREFILL and not self._placed:
            self._placed = self._measures.clock()
            self._measures.queue.observe(self._placed - self._came, self._trace_id)
        elif state is State.PREEMPTED:
            self._measures.preemptions.add()
        if self._watch is not None:
            self._watch(sequence)

    def first_token(self) -> None:
        """The request has its first token, or all that it gets."""
        if self._placed and not self._first:
            self._first = self._measures.clock()
            self._measures.prefill.observe(self._first - self._placed, self._trace_id)

    def complete(self) -> None:
        """The request has all of its answer."""
        if self._first:
            now = self._measures.clock()
            self._measures.decode.observe(now - self._first, self._trace_id)
            self._measures.inference.observe(now - self._placed, self._trace_id)


def _recorded_trace(traceparent: str) -> int:
    """Id of the trace; 0 if there is none, or it is not recorded."""
    return int(traceparent.split("-")[1], 16) if is_sampled(traceparent) else 0


def _unfilled(sequence: Sequence) -> int:
    """Positions of the sequence's blocks that no token fills yet."""
    assert sequence.table is not None
    return max(0, sequence.table.room - sequence.computed)
