"""What a step costs: a sum over what it computes, fitted to steps that were measured.

    time = step + row * decode rows + prefill * prompt tokens
         + context * (earlier tokens that decodes read) + pair * (earlier tokens that prompt tokens read)

No part may be negative. Virtual time is counted in whole picoseconds: then many steps at once end exactly
when the same steps one by one do.
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
"""Picoseconds."""
MICROSECOND = 10**6
TERMS = ("step", "row", "prefill", "context", "pair")


class Shape(NamedTuple):
    """What a step computes."""

    rows: int
    """That compute one token: decodes."""
    context: int
    """Tokens that they read, their own included."""
    prefill: int = 0
    """Tokens of longer rows: prompts' chunks."""
    pairs: int = 0
    """Tokens that each of those reads, summed."""

    @classmethod
    def of(cls, plan: StepPlan) -> "Shape":
        """Of a plan's rows."""
        starts, counts = plan.rows.starts, plan.rows.counts
        if sum(counts) == len(counts):
            return cls(len(counts), sum(starts) + len(counts))
        rows = context = prefill = pairs = 0
        for start, count in zip(starts, counts, strict=True):
            if count == 1:
                rows, context = rows + 1, context + start + 1
            else:
                prefill, pairs = prefill + count, pairs + count * start + count * (count + 1) // 2
        return cls(rows, context, prefill, pairs)


@dataclass(frozen=True)
class Measured:
    """A step that was computed, and the seconds that it took."""

    shape: Shape
    seconds: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """Picoseconds of each term."""

    step: int
    row: int
    prefill: int
    context: int
    pair: int

    def of(self, shape: Shape) -> int:
        """Picoseconds of a step. One without rows, which only hands back slots, takes none."""
        rows, context, prefill, pairs = shape
        if not rows and not prefill:
            return 0
        return (
            self.step + self.row * rows + self.prefill * prefill + self.context * context + self.pair * pairs
        )

    def errors(self, steps: Sequence[Measured]) -> list[float]:
        """How far off each prediction is, as a share of the time measured."""
        return [abs(self.of(each.shape) / SECOND - each.seconds) / each.seconds for each in steps]

    def milliseconds(self) -> dict[str, float]:
        return {term: cost / (SECOND // 1000) for term, cost in zip(TERMS, astuple(self), strict=True)}

    @classmethod
    def from_milliseconds(cls, terms: dict[str, float]) -> "StepCost":
        """Raises `ValueError` if a term is missing, unknown or negative."""
        if set(terms) != set(TERMS) or not all(cost >= 0 for cost in terms.values()):
            raise ValueError(f"each of {', '.join(TERMS)} must be there, and none below 0")
        return cls(**{term: round(cost * (SECOND // 1000)) for term, cost in terms.items()})


def fit(steps: Sequence[Measured]) -> StepCost:
    """The cost that misses the steps by least: least squares of the errors as shares, no term negative.

    There are so few terms that every set of them is tried: the best one that fits without a negative
    term is the solution.
    """
    terms = np.array([_terms(each.shape) for each in steps], float) / [[each.seconds] for each in steps]
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
    """The cost in a file that `ops.simulate.measure` wrote. Raises `ValueError` that names the file."""
    try:
        return StepCost.from_milliseconds(json.loads(path.read_text())["results"]["cost_ms"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no cost of steps: {error!r}") from None


def _terms(shape: Shape) -> tuple[int, ...]:
    return 1, shape.rows, shape.prefill, shape.context, shape.pairs
