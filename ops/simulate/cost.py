"""The time that a step takes: a linear function of its shape, fitted to measured steps.

    time = step + row * decode rows + prefill * prompt tokens
         + context * (earlier tokens that decodes read) + pair * (earlier tokens that prompt tokens read)
         + idle, if nothing is computed when its plan is made

No coefficient may be negative. Virtual time is in whole picoseconds. So steps that are simulated at once end
at exactly the same time as the same steps one by one.
"""

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import combinations
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scheduler_svc.core.plan import StepPlan

SECOND = 10**12
"""Picoseconds of a second."""
MICROSECOND = 10**6
"""Picoseconds of a microsecond."""
TERMS = ("step", "row", "prefill", "context", "pair", "idle")


class Shape(NamedTuple):
    """The work of a step."""

    rows: int
    """Number of decodes. A draft counts as one: it is computed and sampled as one."""
    context: int
    """Sum of the decodes' context lengths: tokens that they read, their own included."""
    prefill: int = 0
    """Tokens in chunks of prompts."""
    pairs: int = 0
    """Sum over the tokens of chunks: tokens that each of them reads, itself included."""

    @classmethod
    def of(cls, plan: StepPlan) -> "Shape":
        """The shape of a plan's step."""
        starts, counts = plan.rows.starts, plan.rows.counts
        if sum(counts) == len(counts):
            return cls(len(counts), sum(starts) + len(counts))
        rows = context = prefill = pairs = 0
        for start, count, sampled in zip(starts, counts, plan.rows.samples, strict=True):
            read = count * start + count * (count + 1) // 2
            if count in (1, sampled):
                rows, context = rows + count, context + read
            else:
                prefill, pairs = prefill + count, pairs + read
        return cls(rows, context, prefill, pairs)


@dataclass(frozen=True)
class Measured:
    """A measured step."""

    shape: Shape
    """What the step computed."""
    seconds: float
    """Seconds that the step took."""
    idle: bool = False
    """Whether the worker had nothing to do before. Then `seconds` begin with the request, and end with what
    the scheduler makes of the result: other steps hide that time."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """The coefficients of a step's time. Picoseconds."""

    step: int
    """For the step itself."""
    row: int
    """For each decode."""
    prefill: int
    """For each token of a prompt."""
    context: int
    """For each token that a decode reads."""
    pair: int
    """For each token that a prompt's token reads."""
    idle: int
    """For a worker that had nothing to do: the time that other steps hide."""

    def of(self, shape: Shape) -> int:
        """Picoseconds of a step. A step without rows only frees slots and takes no time."""
        rows, context, prefill, pairs = shape
        if not rows and not prefill:
            return 0
        return (
            self.step + self.row * rows + self.prefill * prefill + self.context * context + self.pair * pairs
        )

    def errors(self, steps: Sequence[Measured]) -> list[float]:
        """Relative error of each step's predicted time: |predicted - measured| / measured."""
        predicted = ((self.of(each.shape) + each.idle * self.idle) / SECOND for each in steps)
        return [
            abs(seconds - each.seconds) / each.seconds for seconds, each in zip(predicted, steps, strict=True)
        ]

    def milliseconds(self) -> dict[str, float]:
        """The coefficients in milliseconds, by name."""
        return {term: cost / (SECOND // 1000) for term, cost in zip(TERMS, astuple(self), strict=True)}

    @classmethod
    def from_milliseconds(cls, terms: dict[str, float]) -> "StepCost":
        """The inverse of `milliseconds`. Raises `ValueError` if a term is missing, unknown or negative."""
        if set(terms) != set(TERMS) or not all(cost >= 0 for cost in terms.values()):
            raise ValueError(f"each of {', '.join(TERMS)} must be there, and none below 0")
        return cls(**{term: round(cost * (SECOND // 1000)) for term, cost in terms.items()})


def fit(steps: Sequence[Measured]) -> StepCost:
    """Fit the coefficients to measured steps: least squares of the relative errors, without negative terms.

    A fit is made with every subset of the terms. The best one without a negative coefficient is the
    solution.
    """
    terms = np.array([_terms(each) for each in steps], float) / [[each.seconds] for each in steps]
    best, least = np.zeros(len(TERMS)), inf
    for count in range(1, len(TERMS) + 1):
        for chosen in combinations(range(len(TERMS)), count):
            found = np.linalg.lstsq(terms[:, chosen], np.ones(len(steps)))[0]
            missed = float(((terms[:, chosen] @ found - 1) ** 2).sum())
            if found.min() >= 0 and missed < least:
                best, least = np.zeros(len(TERMS)), missed
                best[list(chosen)] = found
    return StepCost(*(round(float(seconds) * SECOND) for seconds in best))


def load(path: Path) -> StepCost:
    """Read the cost from a file of `ops.simulate.measure`. Raises `ValueError` that names the file."""
    try:
        return StepCost.from_milliseconds(json.loads(path.read_text())["results"]["cost_ms"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no cost of steps: {error!r}") from None


def _terms(step: Measured) -> tuple[int, ...]:
    shape = step.shape
    return 1, shape.rows, shape.prefill, shape.context, shape.pairs, step.idle
