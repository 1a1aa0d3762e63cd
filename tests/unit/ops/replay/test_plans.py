"""Recordings against the core. Random programs are in `tests/unit/scheduler_svc/recording/test_tape.py`."""

from types import SimpleNamespace

import pytest

from ops.replay.plans import Replayed
from ops.runtime.errors import UsageError
from proto.arrays import pack, unpack
from proto.recording_pb2 import RecordedEvent, Recording
from proto.worker_pb2 import StepPlan, StepResult


def planned(recording: Recording) -> list[RecordedEvent]:
    return [event for event in recording.events if event.WhichOneof("event") == "planned"]


def test_the_core_makes_the_same_plans(recording: SimpleNamespace) -> None:
    said: list[int] = []
    found = Replayed(recording.message).run(said.append)
    assert found.lines == []
    steps = [StepPlan.FromString(event.planned).step for event in planned(recording.message)]
    assert said == steps == list(range(recording.steps - len(steps) + 1, recording.steps + 1))
    assert found.steps == len(steps)


def test_the_first_other_plan_is_shown(copy: Recording) -> None:
    event = planned(copy)[7]
    plan = StepPlan.FromString(event.planned)
    plan.rows.slots = pack(unpack(plan.rows.slots)[::-1])
    event.planned = plan.SerializeToString()
    found = Replayed(copy).run()
    assert found.steps == 7
    assert found.lines[0] == f"step {plan.step} is planned otherwise:"
    assert found.lines[1].startswith("rows.slots, from number 0 on: ")


def test_a_result_that_was_another_leads_to_other_plans(copy: Recording) -> None:
    """The replay depends on what the recording says, and on all of it."""
    for event in copy.events:
        if event.WhichOneof("event") == "result":
            result = StepResult.FromString(event.result)
            result.errors.add(row=0, message="the model's logits are not finite")
            event.result = result.SerializeToString()
            break
    assert Replayed(copy).run().lines


def test_a_plan_where_there_is_nothing_to_plan_is_a_difference(copy: Recording) -> None:
    place = next(number for number, event in enumerate(copy.events) if event.idle)
    copy.events[place].planned = StepPlan(step=900).SerializeToString()
    assert Replayed(copy).run().lines == ["step 900 was planned, and now there is nothing to plan"]


def test_nothing_where_there_was_a_plan_is_a_difference(copy: Recording) -> None:
    event = planned(copy)[0]
    step = StepPlan.FromString(event.planned).step
    event.idle = 1
    assert Replayed(copy).run().lines == [f"nothing was planned, and now step {step} is"]


def test_what_the_core_raises_is_shown(copy: Recording) -> None:
    copy.events.add(result=StepResult(step=7777).SerializeToString())
    (line,) = Replayed(copy).run().lines
    assert line.startswith("the core raises WorkerFault('a result of step 7777 ")
    assert line.endswith("at the last event, as it may have then")


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"null",
        b"[]",
        b'[["object","blocks:BlockPool",[],[]]]',
        b'[["object","../os:system",[],[]]]',
        b'[["named","blocks:BlockPool",[9]]]',
        b'[["method","rm","append"]]',
        b'[["dict",[[0]],[1]]]',
    ],
)
def test_a_state_that_nobody_has_written_is_refused(copy: Recording, state: bytes) -> None:
    copy.state = state
    with pytest.raises(UsageError, match="cannot be read by this version"):
        Replayed(copy)
