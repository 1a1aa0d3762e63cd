"""One step: apply the plan, run the model, sample, answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from gpu_worker.arrays import Int32s, int32s
from gpu_worker.errors import PlanError
from gpu_worker.kernels.attention import LayerCache
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.rows import Rows
from gpu_worker.kernels.sampling import Sampled, candidates_of
from gpu_worker.machine.clock import clock
from gpu_worker.machine.transfer import to_device
from gpu_worker.memory.host import HostOffer, HostPages
from gpu_worker.models.registry import CausalLM
from gpu_worker.sampling.positions import SamplePositions, sample_positions
from gpu_worker.step.batch import Batch, BatchLimits
from gpu_worker.step.drafter import Drafter
from gpu_worker.step.forward import Forward
from gpu_worker.step.pending import Pending
from gpu_worker.step.plan import Plan, read_plan
from gpu_worker.step.pooling import Embedded
from gpu_worker.step.result import NOT_FINITE
from proto.worker_pb2 import StepPlan, StepResult


class Followers(Protocol):
    """The other ranks of a worker, which do what rank 0 does, in the same order."""

    def begin(self, plan: StepPlan) -> None:
        """Have the other ranks begin a step."""

    def fail(self, slots: Sequence[int]) -> None:
        """Have the other ranks give up the sequences of these slots."""

    def reset(self) -> None:
        """Have the other ranks forget all sequences."""

    def close(self) -> None:
        """End the other ranks, once they have done what they were sent."""

    def abandon(self, error: Exception) -> None:
        """End the whole worker: rank 0 cannot go on, and the others would wait for it for ever."""


class Runner:
    """A model with its KV memory and its batch. Belongs to one thread."""

    def __init__(
        self,
        model: CausalLM,
        caches: Sequence[LayerCache],
        kernels: Kernels,
        limits: BatchLimits,
        drafter: Drafter | None = None,
    ) -> None:
        self.limits = limits
        self.device = caches[0].keys.device
        self.dtype = model.dtype
        self.batch = Batch(limits, self.device)
        self.model = model
        self.forward = Forward(model, caches, kernels)
        self.drafter = drafter
        self.caches = [*caches, *(drafter.caches if drafter else ())]
        """All pages that a block has, those of the draft model after the model's own."""
        self.kernels = kernels
        self._copies = kernels.copies(self.caches)
        self.host = HostPages(self.caches, 0)
        """Host memory for blocks that KV memory has no room for; `sizing.py` decides its size."""
        self.host_offer = HostOffer()
        self.followers: Followers | None = None
        """The worker's other ranks, if this is rank 0 of several."""
        self._step = 0

    def enter(self) -> None:
        """Called once by the thread that the runner is to belong to."""
        self.kernels.enter()

    def reset(self) -> None:
        """Forget everything: the next plan is number 1 of an empty batch."""
        if self.followers is not None:
            self.followers.reset()
        self.batch.reset()
        self.host.reset()
        self._step = 0

    def execute(self, message: StepPlan) -> StepResult:
        """Run one step and wait for its result. Raises `PlanError`, after which only `reset` helps."""
        step = self.begin(message)
        result = step.result()
        self.settle(step)
        return result

    @torch.inference_mode()
    def begin(self, message: StepPlan) -> Pending:
        """Give a step to the device. Raises `PlanError`, after which only `reset` helps."""
        if self.followers is not None:
            self.followers.begin(message)
        if message.step != self._step + 1:
            raise PlanError(f"plan {message.step} came after plan {self._step}")
        self._step += 1
        measured = clock(self.device)
        plan = read_plan(message, self.limits.max_step_tokens)
        self.batch.apply(plan)
        self._swap(message)
        self._copy(message)
        rows, errors = self.batch.rows(plan)
        samples = sample_positions(rows)
        sampled, embedded = self._compute(plan, rows, samples) if len(rows.index) else (None, None)
        kept = np.ones_like(samples.counts)
        if sampled is not None:
            if samples.verify:
                kept = self._verify(samples, sampled)
            self.batch.keep(samples.row_slots, kept)
            sampled = sampled.on_host()
        if embedded is not None:
            embedded = embedded.on_host()
        measured.stop()
        return Pending(plan, samples, sampled, kept, embedded, errors, self.batch.tenures.copy(), measured)

    def settle(self, step: Pending) -> None:
        """Fail the sequences whose logits the step's result has shown not to be finite."""
        self.fail([slot for slot in step.failed if self.batch.tenures[slot] == step.tenures[slot]])

    def fail(self, slots: Sequence[int]) -> None:
        """Give up the sequences of these slots, whose logits were not finite."""
        if slots and self.followers is not None:
            self.followers.fail(slots)
        for slot in slots:
            self.batch.fail(slot, NOT_FINITE)

    def close(self) -> None:
        """End the other ranks. Nothing can be run any more."""
        if self.followers is not None:
            self.followers.close()

    def _swap(self, message: StepPlan) -> None:
        outs, ins = message.swap_out, message.swap_in
        if outs.blocks or ins.blocks:
            self.host.swap(
                int32s(outs.blocks), int32s(outs.host_slots), int32s(ins.host_slots), int32s(ins.blocks)
            )

    def _copy(self, message: StepPlan) -> None:
        copies = message.copies
        if copies.sources:
            blocks = np.stack((int32s(copies.sources), int32s(copies.targets))).astype(np.int64)
            if blocks.min() < 0 or blocks.max() >= self.limits.num_blocks:
                raise PlanError(f"a copy of a block that is not one of {self.limits.num_blocks}")
            sources, targets = self.batch.send(blocks)
            self._copies(sources, targets)

    def _compute(
        self, plan: Plan, rows: Rows, samples: SamplePositions
    ) -> tuple[Sampled | None, Embedded | None]:
        """Run the model over the rows; what they sample, and the embeddings that are complete."""
        batch = self.batch
        if samples.verify:
            self._put_drafts(plan, samples)
        if self.drafter is not None:
            self.drafter.follow(batch, rows, plan.row_guesses[rows.index])
        hidden, device_slots = self.forward(batch, rows)
        embedded = batch.pooling.add(rows, batch.known, hidden, self.model)
        places = samples.places
        if not len(places):
            return None, embedded
        if len(places) < len(hidden) or samples.verify:  # otherwise every token is a row's only one, in order
            sent = batch.send(np.stack((places, samples.slots)))
            hidden, device_slots = hidden[sent[0]], sent[1]
        logits = self.model.logits(hidden)
        sampled = self.kernels.sample(
            logits, samples.slots, device_slots, samples.positions, batch.sampling.state
        )
        if not samples.verify:
            batch.put(device_slots, samples.positions, sampled.tokens)
        candidates = candidates_of(logits, batch.sampling.candidates[samples.slots])
        if candidates is not None:
            sampled = replace(sampled, candidates=candidates)
        return sampled, embedded

    def _put_drafts(self, plan: Plan, samples: SamplePositions) -> None:
        """Put drafts that are given where the rows' tokens are read: behind what their slots know."""
        drafts = plan.draft_tokens
        if drafts.max() >= self.limits.vocab_size:
            raise PlanError(f"draft_tokens: not in the vocabulary of {self.limits.vocab_size}")
        if drafts.min() < 0 and self.drafter is None:
            raise PlanError("draft_tokens: there is no draft model to guess them")
        drafts = drafts[np.repeat(np.isin(np.arange(len(plan.row_slots)), samples.rows), plan.row_drafts)]
        places = np.flatnonzero(samples.numbers + 1 < np.repeat(samples.counts, samples.counts))
        places, drafts = places[drafts >= 0], drafts[drafts >= 0]
        slots = self.batch.send(samples.slots[places])
        self.batch.put(slots, samples.positions[places], to_device(torch.from_numpy(drafts), self.device))

    def _verify(self, samples: SamplePositions, sampled: Sampled) -> Int32s:
        """Sampled tokens that each row keeps, [rows that sample]. Waits for the device."""
        batch = self.batch
        slots, positions = batch.send(np.stack((samples.slots, samples.positions)))
        drafts = batch.tables.tokens[slots, positions]
        # Tokens that are not kept lie behind what the slots know.
        batch.put(slots, samples.positions, sampled.tokens)
        return samples.kept(sampled.tokens.cpu().numpy(), drafts.cpu().numpy())
