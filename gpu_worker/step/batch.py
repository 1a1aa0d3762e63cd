"""The batch that the worker keeps: the tokens, blocks and parameters of every slot.

    slot   tokens [max_model_len + 1]            block table [max_blocks]
     0     p p p p p o o o · · · · · · · ·       4 9 2 · ·
     1     · · · · · · · · · · · · · · · ·       · · · · ·            (free)
     2     p p p o · · · · · · · · · · · ·       7 1 · · ·
                   └─ known = 4: a sampled token is written here by the device itself, so the next
                      step finds it without a round trip through the host

Tokens and block tables are on the device. The host keeps the number of known tokens and the length of the
block table of each slot. These numbers follow from the plans alone, and plans are checked against them.
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.arrays import Int32s, int32s
from gpu_worker.errors import PlanError
from gpu_worker.kernels.attention import StepMetadata
from gpu_worker.kernels.rows import Rows, SlotTables
from gpu_worker.machine.transfer import indices
from gpu_worker.models.projection import Projection
from gpu_worker.sampling.grammars import Grammars
from gpu_worker.sampling.parameters import SamplingTable, fault_in
from gpu_worker.sampling.rules import Rules
from gpu_worker.step.images import SlotImages
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.metadata import describe
from gpu_worker.step.new_slot import adapter_of, fault_in_tokens
from gpu_worker.step.plan import Plan
from gpu_worker.step.pooling import SlotPooling, pooling_fault
from gpu_worker.step.slot_states import SlotStates
from proto.worker_pb2 import NewSlot


class Batch:
    """The state of every slot. Plans change it."""

    def __init__(
        self,
        limits: BatchLimits,
        device: torch.device,
        projection: Projection | None = None,
        images: SlotImages | None = None,
    ) -> None:
        """`projection`: makes embeddings of pooled hidden states; None: these are the embeddings. `images`:
        of slots; None: they have none."""
        self.limits = limits
        self.device = device
        slots = limits.max_slots
        self.tables = SlotTables(
            tokens=torch.zeros((slots, limits.max_model_len + 1), dtype=torch.int32, device=device),
            blocks=torch.zeros((slots, limits.max_blocks), dtype=torch.int32, device=device),
            block_size=limits.block_size,
            shifts=None if images is None else images.device_shifts,
        )
        self.images = images
        self.sampling = SamplingTable(self.tables.tokens, limits.vocab_size)
        self.grammars = Grammars(slots, limits.vocab_size)
        self.rules = Rules(slots, limits.vocab_size)
        self.pooling = SlotPooling(
            slots,
            limits.embedding_size,
            device,
            labels=limits.num_labels,
            bidirectional=limits.bidirectional,
            projection=projection,
        )
        self.second_segments = np.zeros(slots, np.int32)
        """int32 [slots]: position of the first token of the second text of a pair; 0: there is none."""
        self.adapters = np.zeros(slots, np.int32)
        """int32 [slots]: number of each slot's adapter, from 1; 0: the model alone."""
        self.known = np.zeros(slots, np.int32)
        """int32 [slots]: number of tokens that each slot was given or has sampled."""
        self.generations = np.zeros(slots, np.int64)
        """int64 [slots]: number of sequences that have been in each slot so far."""
        self._occupied = np.zeros(slots, np.bool_)
        self._table_lengths = np.zeros(slots, np.int32)
        self.states = SlotStates(slots, limits.block_size) if limits.recurrent else None
        self._described: tuple[Rows, tuple[StepMetadata, Tensor, Tensor]] | None = None
        """The latest rows and what describes them."""
        self._faults: dict[int, str] = {}

    def reset(self) -> None:
        """Forget all sequences."""
        self.generations += 1
        self._occupied[:] = False
        self._faults.clear()
        self.grammars.reset()
        self.rules.reset()
        if self.images is not None:
            self.images.reset()

    def apply(self, plan: Plan) -> None:
        """Apply the changes of a plan to slots, block tables and tokens.

        Raises `PlanError` if the plan contradicts the batch. The batch is undefined then until `reset`.
        """
        message, self._described = plan.message, None
        self._free_slots(int32s(message.freed_slots))
        self.grammars.drop(int32s(message.dropped_grammars).tolist())
        self.grammars.add(message.new_grammars)
        for forks, news in groupby(message.new_slots, lambda new: new.forked_tokens > 0):
            for group in ([new] for new in news) if forks else (list(news),):
                self._admit(group)
        if message.HasField("table_cuts"):
            self._cut_tables(int32s(message.table_cuts.slots), int32s(message.table_cuts.lengths))
        if message.HasField("table_appends"):
            self._add_blocks(int32s(message.table_appends.slots), int32s(message.table_appends.blocks))
        if message.HasField("given_tokens"):
            self._append_given_tokens(int32s(message.given_tokens.slots), int32s(message.given_tokens.tokens))

    def rows(self, plan: Plan) -> tuple[Rows, dict[int, str]]:
        """The rows that can run, and an error message for each other row, by its index in the plan.

        Raises `PlanError` if a row names a slot without a sequence.
        """
        slots, starts, counts = plan.row_slots, plan.row_starts, plan.row_counts
        exists = (slots >= 0) & (slots < self.limits.max_slots)
        self._check_occupied(slots[exists], "rows.slots")
        held = np.where(exists, slots, 0)
        samples = plan.row_samples.astype(np.int32)
        known, ends = self.known[held], starts + counts  # a sum that overflows is negative
        first_draft = ends - plan.row_drafts
        room = np.minimum(self._table_lengths[held] * self.limits.block_size, self.limits.max_model_len)
        good = exists & (starts >= 0) & (ends > starts) & (first_draft <= known) & (ends <= room)
        good &= (samples == 0) | (first_draft == known)
        if self.pooling.kinds[held].any():
            good &= self.pooling.in_order(held, starts, counts, known, samples)
        if self.states is not None:
            good &= self.states.has(held, starts)
        if self._faults:
            good &= ~np.isin(slots, list(self._faults))
        index = np.flatnonzero(good)
        errors = {}
        if len(index) < len(slots):
            errors = {int(row): self._fault_of(plan, int(row)) for row in np.flatnonzero(~good)}
            for row, what in errors.items():
                if exists[row]:
                    self.fail(int(slots[row]), what)
        if self.states is not None:
            self.states.computed[slots[index]] = ends[index]
        index = index[np.argsort(counts[index], kind="stable")]
        return Rows(index, slots[index], starts[index], counts[index], samples[index]), errors

    def metadata(self, rows: Rows) -> tuple[StepMetadata, Tensor, Tensor]:
        """See `describe`. Of the same rows it is done once, until tokens or blocks change."""
        if self._described is not None and self._described[0] is rows:
            return self._described[1]
        in_grid = self.images if self.tables.shifts is not None else None
        self._described = rows, (found := describe(rows, self.tables, self.device, in_grid))
        return found

    def write_tokens(self, device_slots: Tensor, positions: Int32s, tokens: Tensor) -> None:
        """Write tokens to positions of slots. `known` stays as it is: see `advance`."""
        self._described = None
        self.tables.tokens[device_slots, self.send(positions)] = tokens.int()

    def advance(self, slots: Int32s, counts: Int32s) -> None:
        """Count `counts` [slots] more tokens of each slot as known.

        Beams are left out, because the scheduler chooses their tokens and gives them in a later plan.
        """
        self.known[slots] += np.where(self.sampling.candidates[slots] > 0, 0, counts)

    def fail(self, slot: int, what: str) -> None:
        """Let every row of the slot fail with the message `what` until the slot is freed.

        The first message of a sequence stays.
        """
        self._faults.setdefault(slot, what)

    def send(self, array: NDArray[np.integer]) -> Tensor:
        """The array as an int64 tensor of the same shape on the device."""
        return indices(array, self.device)

    def _check_occupied(self, slots: Int32s, name: str) -> None:
        """Raise `PlanError` unless all slots exist and hold a sequence. `name`: the field of the plan."""
        if not len(slots):
            return
        if slots.min() < 0 or slots.max() >= self.limits.max_slots or not self._occupied[slots].all():
            wrong = next(slot for slot in slots.tolist() if not self._is_occupied(slot))
            raise PlanError(f"{name}: slot {wrong} holds no sequence")

    def _is_occupied(self, slot: int) -> bool:
        return 0 <= slot < self.limits.max_slots and bool(self._occupied[slot])

    def _free_slots(self, slots: Int32s) -> None:
        if not len(slots):
            return
        self._check_occupied(slots, "freed_slots")
        if len(np.unique(slots)) != len(slots):
            raise PlanError("freed_slots: a slot is freed twice")
        self._occupied[slots] = False
        if self.images is not None:
            self.images.drop(slots)
        for slot in slots.tolist():
            self.rules.free(slot)
            self._faults.pop(slot, None)

    def _admit(self, news: Sequence[NewSlot]) -> None:
        """Put new sequences into their slots: one forked sequence, or any number that are not forked.

        Each table on the device is written once for all of them.
        """
        begins = np.array([new.forked_tokens for new in news], np.int64)
        tokens = [int32s(new.tokens) for new in news]
        for new, given in zip(news, tokens, strict=True):
            self._admit_on_host(new, given)
        if self.images is not None:
            self.images.tell([new.sight for new in news if new.sight and new.slot in self._faults])
        good = [index for index, new in enumerate(news) if new.slot not in self._faults]
        if not good:
            return
        news, begins, tokens = [news[one] for one in good], begins[good], [tokens[one] for one in good]
        for new in news:
            if new.forked_tokens:
                self._fork(new)
            self.pooling.set(new.slot, new)
            self.grammars.set(new)
            self.rules.set(new)
            if self.images is not None:
                self.images.set(new)
        self.sampling.set(news)
        slots, counts = np.array([new.slot for new in news], np.int32), np.array(list(map(len, tokens)))
        positions = np.arange(counts.sum()) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        sent = self.send(np.stack((np.repeat(slots, counts), positions, np.concatenate(tokens))))
        self.tables.tokens[sent[0], sent[1]] = sent[2].int()
        blocks = [int32s(new.block_ids) for new in news]
        self._add_blocks(np.repeat(slots, list(map(len, blocks))), np.concatenate(blocks))

    def _admit_on_host(self, new: NewSlot, tokens: Int32s) -> None:
        """Write what the host keeps of a new sequence. A fault in its `NewSlot` makes all of its rows fail.

        Raises `PlanError` if the slot does not exist or already holds a sequence.
        """
        slot, limits = new.slot, self.limits
        if slot >= limits.max_slots:
            raise PlanError(f"new_slots: slot {slot} of {limits.max_slots}")
        if self._occupied[slot]:
            raise PlanError(f"new_slots: slot {slot} holds a sequence already")
        self._occupied[slot] = True
        self._faults.pop(slot, None)  # a late fault of the sequence that was here before
        self.generations[slot] += 1
        if limits.bidirectional:
            self.second_segments[slot] = min(new.second_segment, limits.max_model_len)
        self.adapters[slot] = adapter = adapter_of(new, limits.adapters)
        # A plan may name any number; one that is out of bounds is a fault, and need not be kept as it is.
        forked = min(new.forked_tokens, limits.max_model_len)
        if self.states is not None:
            self.states.computed[slot] = forked or -1
        self.known[slot] = min(forked + len(tokens), limits.max_model_len)
        self._table_lengths[slot] = forked // limits.block_size
        fault = fault_in_tokens(new, tokens, limits.max_model_len, limits.vocab_size)
        if adapter < 0:
            fault = fault or f"there is no adapter {new.adapter[:80]!r}"
        fault = (
            fault
            or fault_in(new.sampling)
            or pooling_fault(new, limits.num_labels, limits.bidirectional, limits.headless)
            or self.grammars.fault_in(new)
            or self.rules.fault_in(new)
            or self._fault_in_images(new, forked + len(tokens))
        )
        if fault := fault or (self._fault_in_fork(new) if new.forked_tokens else ""):
            self._table_lengths[slot] = 0
            self.fail(slot, fault)

    def _fork(self, new: NewSlot) -> None:
        """Copy the parent's first `forked_tokens` tokens, and the table entries of their full blocks."""
        parent, begun = new.forked_from, new.forked_tokens
        blocks = begun // self.limits.block_size
        self.tables.tokens[new.slot, :begun] = self.tables.tokens[parent, :begun]
        self.tables.blocks[new.slot, :blocks] = self.tables.blocks[parent, :blocks]

    def _add_blocks(self, slots: Int32s, block_ids: Int32s) -> None:
        if not len(slots):
            return
        self._check_occupied(slots, "table_appends.slots")
        # Several blocks for one slot go side by side, in the plan's order.
        order = np.argsort(slots, kind="stable")
        slots, block_ids = slots[order], block_ids[order]
        owners, first, gains = np.unique(slots, return_index=True, return_counts=True)
        columns = self._table_lengths[slots] + np.arange(len(slots)) - np.repeat(first, gains)
        good = (block_ids >= 0) & (block_ids < self.limits.num_blocks) & (columns < self.limits.max_blocks)
        if not good.all():
            for slot, block in zip(slots[~good].tolist(), block_ids[~good].tolist(), strict=True):
                in_range = 0 <= block < self.limits.num_blocks
                what = "is one too many" if in_range else f"of {self.limits.num_blocks}"
                self.fail(slot, f"block {block} {what} in the block table")
            slots, block_ids, columns = slots[good], block_ids[good], columns[good]
        sent = self.send(np.stack((slots, columns, block_ids)))
        self.tables.blocks[sent[0], sent[1]] = sent[2].int()
        self._table_lengths[owners] += gains.astype(np.int32)

    def _cut_tables(self, slots: Int32s, blocks: Int32s) -> None:
        if not len(slots):
            return
        self._check_occupied(slots, "table_cuts.slots")
        if not ((blocks >= 0) & (blocks <= self._table_lengths[slots])).all():
            raise PlanError("table_cuts.lengths: a block table is not that long")
        self._table_lengths[slots] = blocks

    def _append_given_tokens(self, slots: Int32s, tokens: Int32s) -> None:
        """Append tokens that the scheduler has chosen to the known tokens of their slots, in order."""
        self._check_occupied(slots, "given_tokens.slots")
        written = []
        for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
            known = int(self.known[slot])
            if not 0 <= token < self.limits.vocab_size:
                self.fail(slot, f"token {token} is not in the vocabulary of {self.limits.vocab_size}")
            elif known >= self.limits.max_model_len:
                self.fail(slot, f"more than {self.limits.max_model_len} tokens")
            else:
                written.append((slot, known, token))
                self.known[slot] += 1
        if written:
            sent = self.send(np.array(written, np.int64).T.copy())
            self.tables.tokens[sent[0], sent[1]] = sent[2].int()

    def _fault_in_images(self, new: NewSlot, length: int) -> str:
        if not new.images:
            return ""
        return "this worker sees no images" if self.images is None else self.images.fault_in(new, length)

    def _fault_in_fork(self, new: NewSlot) -> str:
        parent, begun = new.forked_from, new.forked_tokens
        if parent == new.slot or not self._is_occupied(parent):
            return f"forked from slot {parent}, which holds no other sequence"
        if parent in self._faults:
            return self._faults[parent]
        if self.adapters[parent] != self.adapters[new.slot]:
            return "forked from a sequence of another adapter"
        known, blocks = int(self.known[parent]), int(self._table_lengths[parent])
        if begun > known or begun // self.limits.block_size > blocks:
            return f"forked after {begun} tokens of a sequence of {known} in {blocks} blocks"
        if self.states is not None and (missing := self.states.missing(parent, begun)):
            return f"forked after {begun} tokens of a sequence: {missing}"
        return ""

    def _fault_of(self, plan: Plan, row: int) -> str:
        slot, start, count = (int(of[row]) for of in (plan.row_slots, plan.row_starts, plan.row_counts))
        if not 0 <= slot < self.limits.max_slots:
            return f"slot {slot} of {self.limits.max_slots}"
        if slot in self._faults:
            return self._faults[slot]
        known, end = int(self.known[slot]), start + count
        first_draft = end - int(plan.row_drafts[row])
        if start < 0 or first_draft > known:
            return f"positions {start} to {first_draft - 1} of {known} known tokens"
        if end > self.limits.max_model_len:
            return f"position {end - 1} of a sequence of at most {self.limits.max_model_len} tokens"
        room = int(self._table_lengths[slot]) * self.limits.block_size
        if end > room:
            return f"position {end - 1} has no block, the block table ends at {room}"
        if self.states is not None and (missing := self.states.missing(slot, start)):
            return f"position {start} of a sequence: {missing}"
        if self.pooling.kinds[slot]:
            return f"positions {start} to {end - 1} of what is pooled: not in order, or sampled"
        return f"a token for position {first_draft}, which is known up to {known}"
