"""A plan with unpacked arrays, and the checks that need no knowledge of the batch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_worker.arrays import Int32s, int32s
from gpu_worker.errors import PlanError
from proto import arrays
from proto.worker_pb2 import StepPlan


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows that report log probabilities of their prompts' tokens, as in worker.proto."""

    rows: Int32s
    """[prompt rows]: indices of rows in the plan, ascending."""
    firsts: Int32s
    """[prompt rows]: position of the first token that each reports, after the row's first position."""
    counts: Int32s
    """[prompt rows]: tokens that each reports, none further than one after the row's last position."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A StepPlan and the arrays of its rows, as in worker.proto."""

    message: StepPlan
    """The plan. Its arrays are well-formed, and the columns of each table have one length."""
    row_slots: Int32s
    """[rows]: batch slot of each row."""
    row_starts: Int32s
    """[rows]: position of each row's first token in its sequence."""
    row_counts: Int32s
    """[rows]: tokens of each row, drafts included."""
    row_samples: NDArray[np.uint8]
    """[rows]: tokens that each row samples."""
    draft_tokens: Int32s
    """[drafts]: the drafts of all rows, row after row; -1: the draft model proposes it."""
    row_drafts: Int32s
    """[rows]: number of drafts in each row. The drafts are the row's last tokens."""
    prompt_rows: PromptRows | None = None
    """None if no row reports log probabilities of its prompt."""

    @property
    def row_guesses(self) -> Int32s:
        """[rows]: drafts that the draft model proposes for each row: all of the row's drafts or none."""
        rows = np.repeat(np.arange(len(self.row_slots)), self.row_drafts)
        return np.bincount(rows[self.draft_tokens < 0], minlength=len(self.row_slots)).astype(np.int32)


def read_plan(message: StepPlan, max_step_tokens: int) -> Plan:
    """Unpack and check a plan. Raises `PlanError` if it contradicts itself or computes too many tokens."""
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
        prompt_rows=_prompt_rows(message) if message.HasField("prompt_rows") else None,
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


def _prompt_rows(message: StepPlan) -> PromptRows:
    """Raises `PlanError` for a row that is not in the plan, or a token that follows none of its row's."""
    found, starts = message.prompt_rows, int32s(message.rows.starts)
    rows, firsts, counts = int32s(found.rows), int32s(found.firsts), int32s(found.counts)
    if not len(rows) or rows[0] < 0 or rows[-1] >= len(starts) or (np.diff(rows) <= 0).any():
        raise PlanError("prompt_rows.rows: not rows of the plan, ascending")
    begins = starts[rows]
    ends = begins.astype(np.int64) + int32s(message.rows.counts)[rows]
    if (counts < 1).any() or (firsts <= begins).any() or (firsts.astype(np.int64) + counts > ends + 1).any():
        raise PlanError("prompt_rows: a token that does not follow one of its row")
    return PromptRows(rows, firsts, counts)
