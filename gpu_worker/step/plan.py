"""A plan as arrays, without copying, and what can be said against it without knowing the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_worker.arrays import Int32s
from gpu_worker.errors import PlanError
from proto.worker_pb2 import NewSlot, StepPlan

NONE = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Plan:
    """The fields of a StepPlan; worker.proto explains them."""

    step: int
    freed_slots: Int32s
    new_slots: Sequence[NewSlot]
    block_slots: Int32s
    block_ids: Int32s
    row_slots: Int32s
    row_starts: Int32s
    row_counts: Int32s
    row_samples: NDArray[np.uint8]
    draft_tokens: Int32s
    cut_slots: Int32s
    cut_blocks: Int32s
    copy_sources: Int32s
    copy_targets: Int32s
    swap_out_blocks: Int32s
    swap_out_slots: Int32s
    swap_in_slots: Int32s
    swap_in_blocks: Int32s
    given_slots: Int32s
    given_tokens: Int32s
    row_drafts: Int32s
    """How many of each row's tokens, its last ones, are drafts."""

    @property
    def row_guesses(self) -> Int32s:
        """How many of them the draft model is to guess: all or none."""
        rows = np.repeat(np.arange(len(self.row_slots)), self.row_drafts)
        return np.bincount(rows[self.draft_tokens < 0], minlength=len(self.row_slots)).astype(np.int32)


def read_plan(message: StepPlan, max_step_tokens: int) -> Plan:
    """The plan of a message. Raises `PlanError` if its arrays contradict each other."""
    row_samples = np.frombuffer(message.row_samples, np.uint8)
    plan = Plan(
        step=message.step,
        freed_slots=int32s(message.freed_slots, "freed_slots"),
        new_slots=message.new_slots,
        block_slots=int32s(message.block_slots, "block_slots"),
        block_ids=int32s(message.block_ids, "block_ids"),
        row_slots=int32s(message.row_slots, "row_slots"),
        row_starts=int32s(message.row_starts, "row_starts"),
        row_counts=int32s(message.row_counts, "row_counts"),
        row_samples=row_samples,
        draft_tokens=int32s(message.draft_tokens, "draft_tokens"),
        cut_slots=int32s(message.cut_slots, "cut_slots"),
        cut_blocks=int32s(message.cut_blocks, "cut_blocks"),
        copy_sources=int32s(message.copy_sources, "copy_sources"),
        copy_targets=int32s(message.copy_targets, "copy_targets"),
        swap_out_blocks=int32s(message.swap_out_blocks, "swap_out_blocks"),
        swap_out_slots=int32s(message.swap_out_slots, "swap_out_slots"),
        swap_in_slots=int32s(message.swap_in_slots, "swap_in_slots"),
        swap_in_blocks=int32s(message.swap_in_blocks, "swap_in_blocks"),
        given_slots=int32s(message.given_slots, "given_slots"),
        given_tokens=int32s(message.given_tokens, "given_tokens"),
        row_drafts=np.maximum(row_samples, 1).astype(np.int32) - 1,
    )
    if len(plan.block_slots) != len(plan.block_ids):
        raise PlanError(f"{len(plan.block_slots)} block_slots and {len(plan.block_ids)} block_ids")
    if len(plan.copy_sources) != len(plan.copy_targets):
        raise PlanError(f"{len(plan.copy_sources)} copy_sources and {len(plan.copy_targets)} copy_targets")
    if len(plan.cut_slots) != len(plan.cut_blocks):
        raise PlanError(f"{len(plan.cut_slots)} cut_slots and {len(plan.cut_blocks)} cut_blocks")
    for way, blocks, slots in (
        ("out", plan.swap_out_blocks, plan.swap_out_slots),
        ("in", plan.swap_in_blocks, plan.swap_in_slots),
    ):
        if len(blocks) != len(slots):
            raise PlanError(f"{len(blocks)} swap_{way}_blocks and {len(slots)} swap_{way}_slots")
    if len(plan.given_slots) != len(plan.given_tokens):
        raise PlanError(f"{len(plan.given_slots)} given_slots and {len(plan.given_tokens)} given_tokens")
    rows = len(plan.row_slots)
    if not rows == len(plan.row_starts) == len(plan.row_counts) == len(plan.row_samples):
        raise PlanError("row_slots, row_starts, row_counts and row_samples differ in length")
    if rows:
        if plan.row_counts.min() < 1:
            raise PlanError("a row of no tokens")
        if (plan.row_samples > plan.row_counts).any():
            raise PlanError("a row samples more tokens than it has")
        if len(set(plan.row_slots.tolist())) != rows:
            raise PlanError("two rows of one slot")
        if (tokens := int(plan.row_counts.sum(dtype=np.int64))) > max_step_tokens:
            raise PlanError(f"{tokens} tokens in a step that may have {max_step_tokens}")
    if (drafts := int(plan.row_drafts.sum())) != len(plan.draft_tokens):
        raise PlanError(f"{len(plan.draft_tokens)} draft_tokens where the rows have {drafts}")
    if drafts and (plan.row_guesses % np.maximum(plan.row_drafts, 1)).any():
        raise PlanError("draft_tokens: some of a row's are given and some are not")
    return plan


def int32s(packed: bytes, name: str) -> Int32s:
    """Packed little-endian int32. Raises `PlanError` if it is not a whole number of them."""
    if not packed:
        return NONE
    if len(packed) % 4:
        raise PlanError(f"{name}: {len(packed)} bytes are no int32 array")
    return np.frombuffer(packed, "<i4").astype(np.int32, copy=False)
