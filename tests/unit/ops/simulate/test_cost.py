"""A cost of steps is found again from steps that cost so much, and never has a negative part."""

import json
from random import Random

import pytest

from ops.simulate.cost import SECOND, TERMS, Measured, Shape, StepCost, fit, load
from scheduler_svc.core.plan import Rows, StepPlan

COST = StepCost.from_milliseconds(
    {"step": 2, "row": 0.1, "prefill": 0.05, "context": 0.001, "pair": 0.0001, "idle": 3}
)


def drawn(cost: StepCost, count: int = 60) -> list[Measured]:
    chance = Random(3)
    shapes = [
        Shape(
            rows := chance.randint(1, 64),
            rows * chance.randint(1, 900),
            chunk,
            chunk * chance.randint(1, 900),
        )
        for chunk in chance.choices((0, 16, 256), k=count)
    ]
    steps = [Measured(shape, cost.of(shape) / SECOND) for shape in shapes]
    alone = [Shape(0, 0, chunk, chunk * (chunk + 1) // 2) for chunk in (8, 64, 256)]
    return steps + [Measured(shape, (cost.of(shape) + cost.idle) / SECOND, idle=True) for shape in alone]


def test_the_cost_of_steps_is_found_again() -> None:
    found = fit(drawn(COST)).milliseconds()
    assert found == pytest.approx(COST.milliseconds(), rel=1e-4)
    assert max(fit(drawn(COST)).errors(drawn(COST))) < 1e-4


def test_no_part_becomes_negative() -> None:
    steps = [Measured(each.shape, each.seconds * (0.9 + each.shape.rows % 2 / 5)) for each in drawn(COST)]
    # Rows cost less than nothing here: the best that may be said is that they cost nothing.
    steps = [Measured(each.shape, 0.1 + each.seconds - each.shape.rows * 2e-4) for each in steps]
    found = fit(steps).milliseconds()
    assert found["row"] == 0
    assert all(cost >= 0 for cost in found.values())
    assert found["step"] > 90


def test_shapes_of_plans() -> None:
    decodes = StepPlan(1, rows=Rows((0, 1), (9, 4), (1, 1), (1, 1)))
    assert Shape.of(decodes) == Shape(2, 15)
    mixed = StepPlan(1, rows=Rows((0, 1), (9, 4), (1, 3), (1, 0)))
    assert Shape.of(mixed) == Shape(1, 10, 3, 5 + 6 + 7)
    drafts = StepPlan(1, rows=Rows((0, 1), (9, 4), (3, 5), (3, 1)))
    assert Shape.of(drafts) == Shape(3, 10 + 11 + 12, 5, 5 + 6 + 7 + 8 + 9), "a draft is a decode"
    assert COST.of(Shape.of(StepPlan(1, freed_slots=(0,)))) == 0
    assert COST.of(Shape.of(mixed)) == (2000 + 100 + 150 + 10 + 1.8) * SECOND // 10**6


def test_a_file_that_holds_no_cost_is_named(tmp_path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({"results": {"cost_ms": COST.milliseconds()}}))
    assert load(path) == COST
    for wrong in (
        {},
        {"results": {"cost_ms": dict.fromkeys(TERMS, -1.0)}},
        {"results": {"cost_ms": {"step": 1}}},
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=r"cost\.json: no cost of steps"):
            load(path)
