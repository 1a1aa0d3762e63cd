"""One launch copies blocks in all layers.

    addresses   int64 [tensors]    start of each layer's keys, values and scales
    words       int32 [tensors]    size of a block in each tensor, in words of 4 bytes, or of 1 byte

A program copies a piece of one block of one tensor. Each copy reads and writes the block's bytes in all
layers.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.attention import Cache

PIECE = 1024
"""Words that a program copies."""


@triton.jit(do_not_specialize_on_alignment=["sources", "targets"])
def copy_blocks(addresses, words, sources, targets, WORD: tl.constexpr, PIECE: tl.constexpr):
    tensor = tl.program_id(1)
    count = tl.load(words + tensor).to(tl.int64)
    base = tl.load(addresses + tensor).to(tl.pointer_type(WORD))
    at = tl.program_id(2) * PIECE + tl.arange(0, PIECE)
    source = tl.load(sources + tl.program_id(0)) * count + at
    target = tl.load(targets + tl.program_id(0)) * count + at
    tl.store(base + target, tl.load(base + source, mask=at < count), mask=at < count)


class BlockCopies:
    """Copies of blocks within the pages of `layers`."""

    def __init__(self, layers: Sequence[Cache]) -> None:
        """The tensors of `layers` must not move."""
        self._tensors = [tensor for layer in layers for tensor in layer.tensors()]
        sizes = [tensor[0].nbytes for tensor in self._tensors]
        wide = all(size % 4 == 0 for size in sizes)
        self._word = tl.int32 if wide else tl.int8
        self._longest = max(sizes) // (4 if wide else 1)
        device = self._tensors[0].device
        self._addresses = torch.tensor([tensor.data_ptr() for tensor in self._tensors], device=device)
        words = [size // 4 if wide else size for size in sizes]
        self._words = torch.tensor(words, dtype=torch.int32, device=device)

    def __call__(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole blocks within every layer. Block numbers int64 [n]; no target is among the sources."""
        grid = (len(sources), len(self._tensors), triton.cdiv(self._longest, PIECE))
        copy_blocks[grid](self._addresses, self._words, sources, targets, WORD=self._word, PIECE=PIECE)
