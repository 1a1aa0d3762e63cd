"""A worker is given the plans that were recorded, and must give the tokens that were recorded."""

from collections.abc import Callable, Iterator

from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.runner import Runner
from ops.replay.cut import Cut, Cutter
from ops.replay.found import Found
from ops.runtime.errors import UsageError
from proto.arrays import unpack
from proto.recording_pb2 import Recording
from proto.worker_pb2 import StepPlan, StepResult, WorkerReady

MOST_ROWS = 8
"""Rows of a step that are shown."""


def runner_like(worker: WorkerReady, settings: WorkerSettings) -> Runner:
    """A worker's runner with the sizes of the one that was recorded. Raises `UsageError`, `WorkerError`."""
    sizes = {
        "block_size": worker.block_size,
        "max_slots": worker.max_slots,
        "step_tokens": worker.max_step_tokens,
        "max_model_len": worker.max_model_len,
    }
    runner = load(settings.model_copy(update=sizes))
    if runner.limits.num_blocks < worker.num_blocks:
        raise UsageError(
            f"the worker that was recorded had {worker.num_blocks} blocks of KV memory, and this one has "
            f"{runner.limits.num_blocks}: QUIRE_KV_MEMORY gives it more"
        )
    runner.enter()
    return runner


class Compared:
    """A runner that goes through recorded plans."""

    def __init__(self, recording: Recording, runner: Runner) -> None:
        self._events, self._runner = recording.events, runner
        self._cutter = Cutter(recording.worker, runner.host.slots)
        self._waiting: dict[int, tuple[StepPlan, Cut, StepResult]] = {}
        """By step: what was planned, what was computed of it, and what came of that."""
        self.rows = self.rows_left_out = 0
        """Rows that were compared, and rows of sequences that began before the recording."""

    def run(self, say: Callable[[int], None] = lambda step: None) -> Found:
        """Go through all steps, to the first difference. `say`: called with the number of each step."""
        steps = 0
        answered = {StepResult.FromString(each.result).step for each in self._events if each.result}
        for event in self._events:
            if event.WhichOneof("event") == "planned":
                plan = StepPlan.FromString(event.planned)
                try:
                    self._compute(plan)
                except Exception as error:  # a step may have raised it then, too
                    then = "and was answered then" if plan.step in answered else "and had no answer then"
                    return Found(steps, [f"step {plan.step} raises {error!r}, {then}"])
            elif event.WhichOneof("event") == "result":
                recorded = StepResult.FromString(event.result)
                planned = self._waiting.pop(recorded.step, None)
                if planned is None:
                    continue
                if lines := list(self._differences(recorded, *planned)):
                    rest = len(lines) - MOST_ROWS
                    more = [f"and {rest} rows more"] if rest > 0 else []
                    return Found(steps, [f"step {recorded.step}:", *lines[:MOST_ROWS], *more])
                steps += 1
                say(recorded.step)
        return Found(steps)

    def _compute(self, plan: StepPlan) -> None:
        cut = self._cutter.cut(plan)
        for before in cut.before:
            self._runner.execute(before)
        self._waiting[plan.step] = plan, cut, self._runner.execute(cut.plan)
        self.rows += len(cut.rows)
        self.rows_left_out += cut.all_rows - len(cut.rows)

    def _differences(self, recorded: StepResult, plan: StepPlan, cut: Cut, now: StepResult) -> Iterator[str]:
        slots, starts, counts = map(unpack, (plan.rows.slots, plan.rows.starts, plan.rows.counts))
        then, its = _by_row(recorded, plan.rows.samples), _by_row(now, cut.plan.rows.samples)
        for number, row in enumerate(cut.rows):
            if then[row] != its[number]:
                where = f"row {row}, slot {slots[row]}, after position {starts[row] + counts[row] - 1}"
                yield f"{where}: {then[row]} recorded, {its[number]} now"


def _by_row(result: StepResult, samples: bytes) -> list[str]:
    """What came of each row, for comparing and for a person: its tokens, or its error."""
    errors = {error.row: error.message for error in result.errors}
    tokens, found = iter(unpack(result.tokens)), []
    for row, count in enumerate(samples):
        some = [next(tokens) for _ in range(count)]
        found.append(errors.get(row) or f"tokens {some}")
    return found
