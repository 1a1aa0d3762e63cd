"""A plan whose arrays are whole, and what can be checked of it without knowing the batch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_worker.arrays import Int32s, int32s
from gpu_worker.errors import PlanError
from proto import arrays
from proto.worker_pb2 import StepPlan


@dataclass(frozen=True, slots=True)
class Plan:
    """A StepPlan and the arrays of its rows; worker.proto explains them."""

    message: StepPlan
    """Its arrays are whole, and the columns of its tables of one length."""
    row_slots: Int32s
    row_starts: Int32s
    row_counts: Int32s
    row_samples: NDArray[np.uint8]
    draft_tokens: Int32s
    row_drafts: Int32s
    """How many of each row's tokens, its last ones, are drafts."""

    @property
    def row_guesses(self) -> Int32s:
        """How many drafts of each row the draft model is to guess: all of them or none."""
        rows = np.repeat(np.arange(len(self.row_slots)), self.row_drafts)
        return np.bincount(rows[self.draft_tokens < 0], minlength=len(self.row_slots)).astype(np.int32)


def read_plan(message: StepPlan, max_step_tokens: int) -> Plan:
    """The plan of a message. Raises `PlanError` if its arrays contradict each other."""
    try:
        arrays.check(message)
    except arrays.ArrayError as error:
        raise PlanError(str(error)) from error
    rows = message.rows
    row_samples = np.frombuffer(rows.samples, np.uint8)
    least = np.maximum(row_samples, 1)
    plan = Plan(
        message,
        row_slots=int32s(rows.slots),
        row_starts=int32s(rows.starts),
        row_counts=int32s(rows.counts),
        row_samples=row_samples,
        draft_tokens=int32s(message.draft_tokens),
        row_drafts=least.astype(np.int32) - 1,
    )
    if count := len(plan.row_slots):
        if (least > plan.row_counts).any():
            if plan.row_counts.min() < 1:
                raise PlanError("rows.counts: a row of no tokens")
            raise PlanError("rows.samples: a row samples more tokens than it has")
        if len(set(plan.row_slots.tolist())) != count:
            raise PlanError("rows.slots: two rows of one slot")
        if (tokens := int(plan.row_counts.sum(dtype=np.int64))) > max_step_tokens:
            raise PlanError(f"rows.counts: {tokens} tokens in a step that may have {max_step_tokens}")
    if (drafts := int(plan.row_drafts.sum())) != len(plan.draft_tokens):
        raise PlanError(f"{len(plan.draft_tokens)} draft_tokens where the rows have {drafts}")
    if drafts and (plan.row_guesses % np.maximum(plan.row_drafts, 1)).any():
        raise PlanError("draft_tokens: some of a row's are given and some are not")
    return plan
