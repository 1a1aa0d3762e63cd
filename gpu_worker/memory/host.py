"""Host memory for blocks that are swapped out of KV memory. A host slot holds one block of all layers.

    slot 0   │ keys of layer 0 │ values of layer 0 │ keys of layer 1 │ ...      bytes, one after the other
    slot 1   │ ...

A block is gathered from all layers into a buffer on the device, and moves to the host in one copy. Blocks
whose slots are adjacent move together. The buffer has a bounded size: many blocks move in parts.

On a GPU host memory is pinned, and nothing waits for a copy. Copies go to the stream that the steps run on.
The stream's order keeps them apart from other work on the same blocks, slots and buffer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.errors import OutOfMemoryError, PlanError
from gpu_worker.kernels.attention import Cache
from gpu_worker.machine.huge_pages import Memory, populate
from gpu_worker.machine.transfer import indices

PIECE = 16 << 20
"""Bytes of host memory that are allocated at once, when one of their slots is first used; more if blocks are
large. Pinning them takes time. It delays no step as long as it takes less than the step before."""

BUFFER = 16 << 20
"""Bytes of the buffer on the device into which blocks are gathered."""


@dataclass(frozen=True, slots=True)
class HostOffer:
    """What a worker tells the scheduler about its host memory, in `WorkerReady` of worker.proto."""

    host_blocks: int = 0
    """Host slots; each holds one block. 0: there is no host memory."""
    swap_block_us: float = 0.0
    """Time to copy one block to the host, or back. Microseconds."""
    token_us: float = 0.0
    """Time to compute one more token of a prompt. Microseconds."""


def slots_within(memory: int, block_bytes: int, pinned: bool) -> int:
    """Host slots that take `memory` bytes at most. PyTorch pins a power of two, however few are asked for."""
    if not pinned:
        return memory // block_bytes
    piece = _piece_bytes(block_bytes, True)
    whole, rest = divmod(memory, piece)
    last = 1 << rest.bit_length() >> 1
    return whole * (piece // block_bytes) + last // block_bytes


def _piece_bytes(block_bytes: int, pinned: bool) -> int:
    """Bytes of a piece. Of one that is pinned, a power of two, less than an eighth is left over."""
    piece = PIECE
    while pinned and (piece < block_bytes or 8 * (piece % max(1, block_bytes)) >= piece):
        piece *= 2
    return piece


class HostPages:
    """Host slots 0 to `slots` - 1, each for one block of all `caches`, in any KV format."""

    def __init__(self, caches: Sequence[Cache], slots: int) -> None:
        self.slots = slots
        self._tensors = [tensor for cache in caches for tensor in cache.tensors()]
        self._sizes = [tensor.nbytes // len(tensor) for tensor in self._tensors]
        self._device = self._tensors[0].device if caches else torch.device("cpu")
        self._pinned = self._device.type == "cuda"
        self._per_piece = _piece_bytes(self.block_bytes, self._pinned) // max(1, self.block_bytes) or 1
        self._pieces: dict[int, Tensor] = {}
        self._mapped = Memory()
        self._at_once = BUFFER // max(1, self.block_bytes) or 1
        self._gathered: Tensor | None = None
        self._filled = np.zeros(slots, np.bool_)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return sum(self._sizes)

    def reset(self) -> None:
        """Forget the contents of all slots. The memory stays allocated."""
        self._filled[:] = False

    def swap(self, out_blocks: Int32s, out_slots: Int32s, in_slots: Int32s, in_blocks: Int32s) -> None:
        """Copy blocks to host slots, then host slots to blocks.

        Arguments are the columns of `SwapOut` and `SwapIn` in worker.proto. Raises `PlanError` before
        anything moves, if a number is out of range, a target is named twice, or an empty host slot is read.
        """
        outs, ins = len(out_blocks) > 0, len(in_blocks) > 0
        if outs:
            self._check(out_blocks, out_slots, out_slots)
            self._filled[out_slots] = True
        if ins:
            self._check(in_blocks, in_slots, in_blocks)
            if not self._filled[in_slots].all():
                raise PlanError("swap_in.host_slots: a host slot that holds nothing")
        if outs:
            self.swap_out(out_blocks, out_slots)
        if ins:
            self.swap_in(in_slots, in_blocks)

    def swap_out(self, blocks: Int32s, slots: Int32s) -> None:
        """Copy blocks to host slots, without checks."""
        for some, numbers, rows in self._parts(slots, blocks):
            for tensor, part in zip(self._tensors, torch.split(rows, self._sizes, dim=1), strict=True):
                part.copy_(tensor[numbers].flatten(1).view(torch.uint8))
            for run, memory in self._runs(some):
                memory.copy_(rows[run], non_blocking=True)

    def swap_in(self, slots: Int32s, blocks: Int32s) -> None:
        """Copy host slots to blocks, without checks."""
        for some, numbers, rows in self._parts(slots, blocks):
            for run, memory in self._runs(some):
                rows[run].copy_(memory, non_blocking=True)
            for tensor, part in zip(self._tensors, torch.split(rows, self._sizes, dim=1), strict=True):
                aligned = part.clone().view(tensor.dtype)
                tensor[numbers] = aligned.view(len(some), *tensor.shape[1:])

    def populate(self) -> None:
        """Let the system provide the memory of all slots before its first use; see `huge_pages.populate`."""
        pieces = [self._piece(number) for number in range(-(-self.slots // self._per_piece))]
        if pieces:
            populate(pieces)

    def _check(self, blocks: Int32s, slots: Int32s, targets: Int32s) -> None:
        """Raise `PlanError` unless all blocks and slots exist and no target is named twice."""
        if slots.min() < 0 or slots.max() >= self.slots:
            raise PlanError(f"a swap with a host slot that is not one of {self.slots}")
        if blocks.min() < 0 or blocks.max() >= len(self._tensors[0]):
            raise PlanError(f"a swap of a block that is not one of {len(self._tensors[0])}")
        if len(np.unique(targets)) != len(targets):
            raise PlanError("two swaps to one place")

    def _parts(self, slots: Int32s, blocks: Int32s) -> Iterator[tuple[Int32s, Tensor, Tensor]]:
        """The pairs of slot and block, cut into parts that fit into the buffer. Slots ascend.

        Each part is its slots [n], its block ids int64 [n] on the device, and rows of the buffer,
        uint8 [n, bytes of a block].
        """
        if self._gathered is None:
            shape = (min(self._at_once, self.slots), self.block_bytes)
            self._gathered = torch.empty(shape, dtype=torch.uint8, device=self._device)
        order = np.argsort(slots, kind="stable")
        slots, blocks = slots[order], blocks[order]
        numbers = indices(blocks, self._device)
        for first in range(0, len(slots), self._at_once):
            some = slots[first : first + self._at_once]
            yield some, numbers[first : first + self._at_once], self._gathered[: len(some)]

    def _runs(self, slots: Int32s) -> Iterator[tuple[slice, Tensor]]:
        """Ascending slots, cut into runs of adjacent ones: the run's range in `slots`, and its memory."""
        pieces = slots // self._per_piece
        cuts = np.flatnonzero((np.diff(slots) != 1) | (np.diff(pieces) != 0)) + 1
        for first, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(slots)], strict=True):
            begin = int(slots[first]) % self._per_piece
            yield slice(first, end), self._piece(int(pieces[first]))[begin : begin + end - first]

    def _piece(self, number: int) -> Tensor:
        """Memory of piece `number`, allocated if it is new: uint8 [slots of a piece, bytes of a block].

        Raises `OutOfMemoryError` if there is no memory left.
        """
        if number not in self._pieces:
            slots = min(self._per_piece, self.slots - number * self._per_piece)
            size = slots * self.block_bytes
            try:
                if self._pinned:
                    memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
                else:
                    memory = self._mapped.take(-(-size // 4)).view(torch.uint8)[:size]
                self._pieces[number] = memory.view(slots, self.block_bytes)
            except (RuntimeError, OSError) as error:
                raise OutOfMemoryError("no host memory left: lower QUIRE_HOST_MEMORY") from error
        return self._pieces[number]
