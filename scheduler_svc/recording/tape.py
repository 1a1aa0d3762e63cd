"""What happens to the scheduler of one worker, on tape: the last minutes of it.

    older segment    state ▸ events ........................................
    newer segment    state ▸ events ........ now

The core is deterministic: from the same state on the same calls give the same plans. A segment begins with a
copy of the state. When the newer one is full it becomes the older one, which is dropped. Plans and results
are kept as the bytes that go over the wire.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proto.recording_pb2 import EndedSequence, RecordedEvent, Recording
from proto.worker_pb2 import StepPlan as PlanMessage
from proto.worker_pb2 import StepResult, WorkerReady
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.recording.snapshot import Snapshot, take

SEGMENT_SECONDS = 120.0
"""Time after which a segment is full."""
SEGMENT_BYTES = 16 * 2**20
"""Size after which a segment is full. The state at its beginning comes on top of it."""
EVENT_BYTES = 160
"""What an event takes besides its payload, about."""

Event = tuple[float, str, Any]
"""When, which field of `RecordedEvent`, and its value."""


@dataclass(slots=True)
class _Segment:
    began: float
    state: Snapshot
    events: list[Event] = field(default_factory=list)
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Take:
    """What was on tape at a moment."""

    state: Snapshot
    events: list[Event]

    def recording(self) -> Recording:
        """As a message. Takes a while; any thread may call this."""
        return Recording(state=self.state.encode(), events=[_message(*event) for event in self.events])


def _message(at: float, name: str, value: Any) -> RecordedEvent:
    field: dict[str, Any] = {name: value.encode() if isinstance(value, Snapshot) else value}
    return RecordedEvent(at=at, **field)


class Tape:
    """Keeps the events of one scheduler."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: in seconds."""
        self._scheduler, self._clock = scheduler, clock
        self.worker = WorkerReady()
        """What the worker has to offer."""
        self.segments = 1
        """Number of segments so far."""
        self._segments = [self._begin()]

    def take(self) -> Take:
        """Everything that is on tape."""
        return Take(self._segments[0].state, [event for each in self._segments for event in each.events])

    def add(self, name: str, value: object, size: int = 0) -> None:
        """An event: see `Event`. `size`: bytes that its value takes, if they are many."""
        newest = self._segments[-1]
        newest.events.append((self._clock(), name, value))
        newest.bytes += EVENT_BYTES + size

    def submitted(self, group: SequenceGroup) -> None:
        """The scheduler is about to take on a group."""
        tokens = {id(each.tokens): len(each.tokens) for each in group.sequences}  # many may share an array
        self.add("submitted", take(group, accounts=False), 8 * sum(tokens.values()))

    def came(self, result: StepResult) -> None:
        """The worker has answered a step. To be called before the core takes it in."""
        message = result.SerializeToString()
        self.add("result", message, len(message))

    def planning(self) -> None:
        """The core is about to plan."""
        newest = self._segments[-1]
        if newest.bytes >= SEGMENT_BYTES or self._clock() - newest.began >= SEGMENT_SECONDS:
            self._segments = [newest, self._begin()]
            self.segments += 1
        events = self._segments[-1].events
        if events and events[-1][1] == "idle":
            events[-1] = (*events[-1][:2], events[-1][2] + 1)
        else:
            self.add("idle", 1)

    def planned(self, plan: PlanMessage) -> None:
        """The core has made this plan since `planning` was called."""
        events, message = self._segments[-1].events, plan.SerializeToString()
        *_, times = events.pop()
        if times > 1:
            self.add("idle", times - 1)
        self.add("planned", message, len(message))

    def _begin(self) -> _Segment:
        core = {name: value for name, value in vars(self._scheduler).items() if name != "tape"}
        return _Segment(self._clock(), take(core))


class RecordedScheduler(Scheduler):
    """A scheduler whose calls are on tape, each before it is carried out: the last may have failed."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.tape = Tape(self)

    def submit(self, group: SequenceGroup) -> None:
        self.tape.submitted(group)
        super().submit(group)

    def plan(self) -> StepPlan | None:
        if self.paused:
            return None
        self.tape.planning()
        return super().plan()

    def compiled(self, grammar: int) -> None:
        self.tape.add("compiled", grammar)
        super().compiled(grammar)

    def seen(self, sight: int) -> None:
        self.tape.add("seen", sight)
        super().seen(sight)

    def cancel(self, group: SequenceGroup) -> None:
        self.tape.add("cancelled", group.arrival)
        super().cancel(group)

    def end_sequence(self, group: SequenceGroup, index: int) -> None:
        self.tape.add("ended", EndedSequence(arrival=group.arrival, index=index))
        super().end_sequence(group, index)

    def evacuate(self) -> list[SequenceGroup]:
        self.tape.add("evacuated", True)
        return super().evacuate()

    def withdraw_waiting(self, share: float) -> list[SequenceGroup]:
        self.tape.add("withdrew", share)
        return super().withdraw_waiting(share)
