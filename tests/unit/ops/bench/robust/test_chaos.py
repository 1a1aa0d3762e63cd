"""An outcome is without fault only if nothing was lost, changed or left behind."""

from typing import Any

import pytest

from ops.bench.robust.chaos import Happened, Outcome, told
from ops.bench.robust.streams import Choices, Question, Tally

DUE: Choices = {0: ("ab", [1, 2], "stop")}


class FakeRig:
    lease_seconds = 2.0


def outcome(**fields: Any) -> Outcome:
    tally = Tally()
    tally.compare(Question("/v1/completions", {}), DUE, DUE)
    happened = [
        Happened("worker: killed", 0.5, True),
        Happened("redis: killed and worker: stopped", 1.5, True),
    ]
    return Outcome(
        **({"tally": tally, "happened": happened, "seconds": 60, "pending": 0, "errors": []} | fields)
    )


def test_nothing_wrong() -> None:
    assert outcome().faultless


@pytest.mark.parametrize(
    "fields",
    [
        {"happened": [Happened("worker: killed", 60, False)]},
        {"pending": 1},
        {"errors": ["scheduler-0: ERROR the scheduler's state is inconsistent"]},
        {"tally": Tally(accepted=2, completed=1, identical=1)},
        {"tally": Tally(accepted=1, completed=1, different=1)},
        {"tally": Tally(accepted=1, completed=1, identical=1, tokens_repeated=1)},
    ],
    ids=["not recovered", "pending", "errors", "lost", "different", "repeated"],
)
def test_something_wrong(fields: dict[str, Any]) -> None:
    assert not outcome(**fields).faultless


def test_what_is_told() -> None:
    rig: Any = FakeRig()
    results = told(outcome(), rig, 4)
    assert results["faults"] == 3
    assert results["requests"]["identical"] == 1
    assert results["tokens"] == {"received": 2, "lost": 0, "repeated": 0}
    assert results["recovery_s"]["p50"] == 1.0
    assert results["longest_recovery_s"] == 1.5
    assert results["by_fault"].keys() == {"worker: killed", "two at once"}
