"""The scheduler's core gets the recorded events again, and must make the recorded plans."""

from collections.abc import Callable

from ops.replay.found import Found
from ops.replay.shown import differences
from ops.runtime.errors import UsageError
from proto.recording_pb2 import RecordedEvent, Recording
from proto.worker_pb2 import StepPlan, StepResult
from scheduler_svc.core.errors import SchedulerError
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.recording.snapshot import decode
from scheduler_svc.wire import plan_to, result_from


def scheduler_of(recording: Recording) -> Scheduler:
    """The scheduler before the first event. Raises `UsageError`."""
    try:
        attributes = decode(recording.state)
        scheduler = object.__new__(Scheduler)
        vars(scheduler).update(attributes)
        scheduler.check_integrity()
    except (ValueError, TypeError, AttributeError, SchedulerError) as error:
        raise UsageError(f"the recording's first state cannot be read by this version: {error}") from None
    return scheduler


class Replayed:
    """A scheduler that goes through what is recorded."""

    def __init__(self, recording: Recording) -> None:
        self.scheduler = scheduler_of(recording)
        self._events = recording.events
        self._groups = {group.arrival: group for group in self.scheduler.state.groups}
        self._apply: dict[str | None, Callable[[RecordedEvent], None]] = {
            "submitted": self._submit,
            "cancelled": lambda event: self.scheduler.cancel(self._groups[event.cancelled]),
            "ended": self._end,
            "withdrew": lambda event: self._forget(self.scheduler.withdraw_waiting(event.withdrew)),
            "evacuated": lambda event: self._forget(self.scheduler.evacuate()),
            "compiled": lambda event: self.scheduler.compiled(event.compiled),
            "seen": lambda event: self.scheduler.seen(event.seen),
            "result": self._settle,
        }

    def run(self, say: Callable[[int], None] = lambda steps: None) -> Found:
        """Go through all events, to the first difference. `say`: called with the number of each step."""
        steps = 0
        for number, event in enumerate(self._events):
            kind = event.WhichOneof("event")
            try:
                if kind not in ("planned", "idle"):
                    self._apply[kind](event)
                    continue
                plans = (self.scheduler.plan() for _ in range(max(1, event.idle)))
                plan = next((each for each in plans if each is not None), None)
                now = StepPlan() if plan is None else plan_to(plan)
            except Exception as error:  # which the core may have raised then, too
                last = number + 1 == len(self._events)
                where = "at the last event, as it may have then" if last else f"at event {number}, {kind}"
                return Found(steps, [f"the core raises {error!r}, {where}"])
            recorded = StepPlan.FromString(event.planned)
            if recorded != now:
                return Found(steps, _lines(recorded, now))
            if plan is not None:
                steps += 1
                say(plan.step)
        return Found(steps)

    def _submit(self, event: RecordedEvent) -> None:
        group: SequenceGroup = decode(event.submitted)
        self._groups[group.arrival] = group
        self.scheduler.submit(group)

    def _end(self, event: RecordedEvent) -> None:
        self.scheduler.end_sequence(self._groups[event.ended.arrival], event.ended.index)

    def _settle(self, event: RecordedEvent) -> None:
        result, _ = result_from(StepResult.FromString(event.result))
        self.scheduler.complete(result)

    def _forget(self, groups: list[SequenceGroup]) -> None:
        for group in groups:
            del self._groups[group.arrival]


def _lines(recorded: StepPlan, now: StepPlan) -> list[str]:
    """A plan without a number stands for none."""
    if not now.step:
        return [f"step {recorded.step} was planned, and now there is nothing to plan"]
    if not recorded.step:
        return [f"nothing was planned, and now step {now.step} is"]
    return [f"step {recorded.step} is planned otherwise:", *differences(recorded, now)]
