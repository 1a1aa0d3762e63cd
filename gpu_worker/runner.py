"""One step: apply the plan, run the model, sample, answer."""

import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gpu_worker.batch import Batch, BatchLimits, Rows
from gpu_worker.cache import copy_blocks
from gpu_worker.errors import PlanError
from gpu_worker.kernels.interface import Kernels, LayerCache
from gpu_worker.models.registry import CausalLM
from gpu_worker.plan import Int32s, Plan, read_plan
from gpu_worker.result import NOT_FINITE, failed_rows, result_of
from gpu_worker.sampler import Sampled
from proto.worker_pb2 import StepPlan, StepResult


class Runner:
    """A model with its KV memory and its batch. Belongs to one thread."""

    def __init__(
        self,
        model: CausalLM,
        caches: Sequence[LayerCache],
        kernels: Kernels,
        limits: BatchLimits,
    ) -> None:
        self.limits = limits
        self.device = caches[0].keys.device
        self.dtype = model.dtype
        self.batch = Batch(limits, self.device)
        self.model = model
        self.caches = caches
        self.kernels = kernels
        self._step = 0

    def enter(self) -> None:
        """Called once by the thread that the runner is to belong to."""
        self.kernels.enter()

    def reset(self) -> None:
        """Forget everything: the next plan is number 1 of an empty batch."""
        self.batch.reset()
        self._step = 0

    @torch.inference_mode()
    def execute(self, message: StepPlan) -> StepResult:
        """Run one step. Raises `PlanError`, after which only `reset` helps."""
        started = time.perf_counter_ns()
        if message.step != self._step + 1:
            raise PlanError(f"plan {message.step} came after plan {self._step}")
        self._step += 1
        plan = read_plan(message, self.limits.max_step_tokens)
        self.batch.apply(plan)
        self._copy(plan)
        rows, errors = self.batch.rows(plan)
        sampling = _in_plan_order(rows)
        sampled = self._compute(rows, sampling) if len(rows.index) else None
        sampled_rows = rows.index[sampling]
        if sampled is not None:
            for row in failed_rows(sampled, sampled_rows):
                errors[row] = NOT_FINITE
                self.batch.fail(int(plan.row_slots[row]), NOT_FINITE)
        result = result_of(plan, sampled, sampled_rows, errors)
        result.duration_us = (time.perf_counter_ns() - started) // 1000
        return result

    def _copy(self, plan: Plan) -> None:
        if len(plan.copy_sources):
            blocks = np.stack((plan.copy_sources, plan.copy_targets)).astype(np.int64)
            if blocks.min() < 0 or blocks.max() >= self.limits.num_blocks:
                raise PlanError(f"a copy of a block that is not one of {self.limits.num_blocks}")
            sources, targets = torch.from_numpy(blocks).to(self.device)
            copy_blocks(self.caches, sources, targets)

    def _compute(self, rows: Rows, sampling: NDArray[np.intp]) -> Sampled | None:
        """Run the model over the rows and sample for those at `sampling`; None if those are none."""
        batch = self.batch
        step, tokens, device_slots = batch.metadata(rows)
        hidden = self.model(tokens, self.kernels.begin(step), self.caches)
        if not len(sampling):
            return None
        slots: Int32s = rows.slots[sampling]
        if len(sampling) < len(tokens):  # otherwise every token is a row's last one, in order
            places = torch.from_numpy(sampling).to(batch.device, non_blocking=True)
            hidden = hidden[step.query_starts[places + 1] - 1]
            device_slots = device_slots[places]
        logits = self.model.logits(hidden)
        sampled = self.kernels.sample(logits, slots, device_slots, batch)
        batch.keep(slots, device_slots, sampled.tokens)
        return sampled


def _in_plan_order(rows: Rows) -> NDArray[np.intp]:
    """Which rows sample, in the order in which the plan has them."""
    sampling = np.flatnonzero(rows.samples)
    return sampling[np.argsort(rows.index[sampling])]
