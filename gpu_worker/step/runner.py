"""The runner: applies a plan to the batch, runs the model, samples, and gives the result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gpu_worker.arrays import Int32s, int32s
from gpu_worker.errors import PlanError
from gpu_worker.kernels.attention import Cache, LayerCache
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.rows import Rows
from gpu_worker.kernels.sampling import Allowed, Sampled, candidates_of, joined
from gpu_worker.machine.clock import clock
from gpu_worker.machine.transfer import to_device
from gpu_worker.memory.cache import token_bytes
from gpu_worker.memory.host import HostOffer, HostPages
from gpu_worker.models.causal_lm import CausalLM
from gpu_worker.models.encoder import Encoder
from gpu_worker.models.projection import Projection
from gpu_worker.models.sight import Seen
from gpu_worker.sampling.positions import SamplePositions, sample_positions
from gpu_worker.sampling.tokens_read import TokensRead
from gpu_worker.step.batch import Batch
from gpu_worker.step.drafter import Drafter
from gpu_worker.step.encoding import Encoding
from gpu_worker.step.forward import Forward
from gpu_worker.step.images import SlotImages
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.pending import Pending
from gpu_worker.step.plan import Plan, read_plan
from gpu_worker.step.pooling import Embedded
from gpu_worker.step.prompt_logprobs import PromptLogprobs, prompt_logprobs
from gpu_worker.step.result import NOT_FINITE, ForcedTokens
from proto.worker_pb2 import StepPlan, StepResult


class Followers(Protocol):
    """The other ranks of a worker. They repeat what rank 0 does, in the same order."""

    def begin(self, plan: StepPlan) -> None:
        """Let the other ranks begin a step."""

    def fail(self, slots: Sequence[int]) -> None:
        """Let the sequences in these slots fail on the other ranks."""

    def reset(self) -> None:
        """Let the other ranks forget all sequences."""

    def when_all_have(self, announce: Callable[[int], None]) -> Callable[[int], None]:
        """What rank 0 is to call with each grammar that it has compiled, from now on until `reset`.

        `announce` is then called with each grammar that all ranks have compiled.
        """

    def close(self) -> None:
        """End the other ranks once they have carried out their orders."""

    def failed(self, error: Exception) -> None:
        """A step has raised an error on rank 0. Returns if it has on the other ranks, too, at the same place.
        Otherwise their batches may differ, or they wait for rank 0 for ever: ends the whole worker."""


def _no_pages(sources: Tensor, targets: Tensor) -> None:
    """Copies of blocks of an encoder, which have no pages."""


class Runner:
    """A model with its KV memory and its batch. All calls are made by one thread."""

    def __init__(
        self,
        model: CausalLM,
        caches: Sequence[Cache],
        kernels: Kernels,
        limits: BatchLimits,
        drafter: Drafter | None = None,
        projection: Projection | None = None,
        images: SlotImages | None = None,
    ) -> None:
        self.limits = limits
        self.device = model.device if isinstance(model, Encoder) else caches[0].tensors()[0].device
        self.dtype = model.dtype
        self.batch = Batch(limits, self.device, projection, images)
        self.model = model
        self.forward = Encoding(model) if isinstance(model, Encoder) else Forward(model, caches, kernels)
        self.drafter = drafter
        self.caches = [*caches, *(drafter.caches if drafter else ())]
        """What every layer keeps in blocks: the model's layers, then the draft model's."""
        self.kernels = kernels
        self._copies = kernels.copies(self.caches) if self.caches else _no_pages
        self.host = HostPages(self.caches, 0)
        """Host memory for blocks that do not fit into KV memory. `sizing.py` decides its size."""
        self.host_offer = HostOffer()
        self.fingerprint = ""
        """What its answers depend on besides the request; empty: not known."""
        self.adapters: Mapping[str, str] = {}
        """The same of answers with each LoRA adapter, by its name."""
        self.followers: Followers | None = None
        """The worker's other ranks; None if there are none, or this is not rank 0."""
        self._step = 0

    @property
    def pages(self) -> list[LayerCache]:
        """Those of `caches` that are pages of keys and values."""
        return [cache for cache in self.caches if isinstance(cache, LayerCache)]

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values in all layers; 0 if no layer has any."""
        return token_bytes(self.model.config, self.pages[0].format) if self.pages else 0

    def enter(self) -> None:
        """To be called once by the thread that makes all further calls."""
        self.kernels.enter()

    def announce_grammars(self, announce: Callable[[int], None]) -> None:
        """Tell of the grammars that plans bring from now on until `reset`; see `Grammars.announce`."""
        followers = self.followers
        self.batch.grammars.announce = announce if followers is None else followers.when_all_have(announce)

    def reset(self) -> None:
        """Forget all sequences. The next plan has number 1 and finds an empty batch."""
        if self.followers is not None:
            self.followers.reset()
        self.batch.reset()
        self.host.reset()
        self._step = 0

    def execute(self, message: StepPlan) -> StepResult:
        """Run one step and wait for its result. Raises `PlanError`; then `reset` must follow."""
        step = self.begin(message)
        result = step.result()
        self.settle(step)
        return result

    def announce_sights(self, announce: Callable[[int], None]) -> None:
        """Tell of the images that plans bring from now on until `reset`, once this rank has seen them."""
        if self.batch.images is not None:
            self.batch.images.announce = announce

    def begin(self, message: StepPlan) -> Pending:
        """Give a step to the device. Raises `PlanError`; then `reset` must follow."""
        images = self.batch.images
        if images is None or images.turns is None:
            return self._begin(message)
        with images.turns:
            return self._begin(message)

    @torch.inference_mode()
    def _begin(self, message: StepPlan) -> Pending:
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
        sampled, embedded, prompts = (
            self._compute(plan, rows, samples, errors) if len(rows.index) else (None, None, None)
        )
        kept = np.ones_like(samples.counts)
        forced: ForcedTokens = {}
        if sampled is not None:
            if samples.verify:
                kept = self._verify(samples, sampled)
                if isinstance(self.forward, Forward) and self.forward.drafted is not None:
                    self.forward.drafted.write(samples, kept)
            self.batch.advance(samples.row_slots, kept)
            forced = self._forced(samples, errors)
            sampled = sampled.on_host()
        if self.drafter is not None and len(rows.index):
            self.drafter.verified(self.batch, rows, samples, kept)
        if embedded is not None:
            embedded = embedded.on_host()
        if prompts is not None:
            prompts = prompts.on_host()
        measured.stop()
        generations = self.batch.generations.copy()
        slots, grammars = plan.row_slots, self.batch.grammars
        at_limits = [row for row in errors if grammars.at_limit(int(slots[row]))]
        return Pending(
            plan=plan,
            samples=samples,
            sampled=sampled,
            kept=kept,
            embedded=embedded,
            prompts=prompts,
            errors=errors,
            generations=generations,
            clock=measured,
            forced=forced,
            at_limits=at_limits,
        )

    def settle(self, step: Pending) -> None:
        """Let the sequences fail whose logits were not finite, as the step's result has shown."""
        self.fail([slot for slot in step.failed if self.batch.generations[slot] == step.generations[slot]])

    def fail(self, slots: Sequence[int]) -> None:
        """Let all further rows of these slots fail: their logits were not finite, or rank 0 has told so."""
        if slots and self.followers is not None:
            self.followers.fail(slots)
        for slot in slots:
            self.batch.fail(slot, NOT_FINITE)

    def close(self) -> None:
        """End the other ranks. No step can be run after that."""
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
        self, plan: Plan, rows: Rows, samples: SamplePositions, errors: dict[int, str]
    ) -> tuple[Sampled | None, Embedded | None, PromptLogprobs | None]:
        """Run the model over the rows. Returns sampled tokens, complete embeddings and log probabilities of
        prompts; each may be None.

        Adds rows whose grammar cannot go on, or whose images cannot be read, to `errors`, by their index in
        the plan.
        """
        batch = self.batch
        if samples.verify:
            self._put_drafts(plan, samples)
        if self.drafter is not None:
            self.drafter.propose(batch, rows, plan.row_guesses[rows.index])
        to_consume = batch.grammars.to_consume(samples, batch.tables.tokens)
        for_rules = batch.rules.read(samples, batch.tables.tokens)
        seen = self._look(rows, errors)
        hidden, device_slots = self.forward(batch, rows, seen)
        if self.drafter is not None:
            self.drafter.follow(batch, rows, hidden, seen)
        embedded, prompts = batch.pooling.add(rows, batch.known, hidden, self.model), None
        if plan.prompt_rows is not None:
            prompts = prompt_logprobs(plan.prompt_rows, rows, batch, hidden, self.model)
        sources = samples.logits_indices
        if not len(sources):
            return None, embedded, prompts
        # Otherwise each row has one token, and the order is the same.
        if len(sources) < len(hidden) or samples.verify:
            sent = batch.send(np.stack((sources, samples.slots)))
            hidden, device_slots = hidden[sent[0]], sent[1]
        size = self.limits.logits_at_once
        logits = self.model.logits(hidden if len(hidden) <= size else hidden[:size])
        # The device computes meanwhile.
        allowed = None if to_consume is None else self._allowed(to_consume, samples, errors)
        if for_rules is not None:
            allowed = batch.rules.add_to(allowed, for_rules, samples)
        if len(hidden) <= size:
            sampled = self._sample(logits, samples.slots, device_slots, samples.positions, allowed)
        else:
            parts = list[Sampled]()
            for begin in range(0, len(hidden), size):
                some, end = slice(begin, begin + size), min(begin + size, len(hidden))
                if begin:
                    logits = self.model.logits(hidden[some])
                own = None if allowed is None else allowed.part(begin, end)
                which = samples.slots[some], device_slots[some], samples.positions[some]
                parts.append(self._sample(logits, *which, own))
            sampled = joined(parts)
        if not samples.verify:
            batch.write_tokens(device_slots, samples.positions, sampled.tokens)
        return sampled, embedded, prompts

    def _sample(
        self,
        logits: Tensor,
        slots: Int32s,
        device_slots: Tensor,
        positions: Int32s,
        allowed: Allowed | None,
    ) -> Sampled:
        """See `Kernels.sample`. With the candidates of beams."""
        table = self.batch.sampling
        sampled = self.kernels.sample(logits, slots, device_slots, positions, table.state, allowed)
        candidates = candidates_of(logits, table.candidates[slots])
        return sampled if candidates is None else replace(sampled, candidates=candidates)

    def _look(self, rows: Rows, errors: dict[int, str]) -> Seen | None:
        """What the step's rows see in images. Rows whose images cannot be read fail from now on."""
        if self.batch.images is None:
            return None
        seen, faults = self.batch.images.look(rows)
        for slot, what in faults.items():
            errors[int(rows.index[rows.slots == slot][0])] = what
            self.batch.fail(slot, what)
        return seen

    def _allowed(self, read: TokensRead, samples: SamplePositions, errors: dict[int, str]) -> Allowed | None:
        """What the grammars of the step's rows allow. Rows that cannot go on fail from now on."""
        masks = self.batch.grammars.masks(read, samples)
        for row, what in masks.faults.items():
            slot = int(samples.row_slots[row])
            errors[int(samples.rows[row])] = what
            self.batch.fail(slot, what)
            if self.followers is not None:  # they do not find that a grammar takes too much time
                self.followers.fail([slot])
        return masks.allowed

    def _forced(self, samples: SamplePositions, errors: Mapping[int, str]) -> ForcedTokens:
        """The tokens that grammars force in the sequences of the step's rows."""
        grammars, slots = self.batch.grammars, samples.row_slots
        if not grammars.used[slots].any():
            return {}
        rows = dict(zip(slots.tolist(), samples.rows.tolist(), strict=True))
        good = [slot for slot, row in rows.items() if row not in errors]
        found = grammars.forced(good, self.batch.known, self.batch.tables.tokens)
        return {rows[slot]: run for slot, run in found.items()}

    def _put_drafts(self, plan: Plan, samples: SamplePositions) -> None:
        """Write the plan's drafts to the batch's tokens, after the known tokens of their slots.

        Raises `PlanError` if a draft is not in the vocabulary, or there is no draft model to propose it.
        """
        drafts = plan.draft_tokens
        if drafts.max() >= self.limits.vocab_size:
            raise PlanError(f"draft_tokens: not in the vocabulary of {self.limits.vocab_size}")
        if drafts.min() < 0 and self.drafter is None:
            raise PlanError("draft_tokens: there is no draft model to guess them")
        drafts = drafts[np.repeat(np.isin(np.arange(len(plan.row_slots)), samples.rows), plan.row_drafts)]
        given = np.flatnonzero(samples.indices_in_row + 1 < np.repeat(samples.counts, samples.counts))
        given, drafts = given[drafts >= 0], drafts[drafts >= 0]
        slots = self.batch.send(samples.slots[given])
        self.batch.write_tokens(
            slots, samples.positions[given], to_device(torch.from_numpy(drafts), self.device)
        )

    def _verify(self, samples: SamplePositions, sampled: Sampled) -> Int32s:
        """[rows that sample]: sampled tokens that each row keeps. Waits for the device."""
        batch = self.batch
        slots, positions = batch.send(np.stack((samples.slots, samples.positions)))
        drafts = batch.tables.tokens[slots, positions]
        # Tokens that are not kept come after the known tokens of their slots, where nothing reads them.
        batch.write_tokens(slots, samples.positions, sampled.tokens)
        return samples.kept(sampled.tokens.cpu().numpy(), drafts.cpu().numpy())
