"""What the kernels of attention ask of a format of pages, beside what `KvFormat` has.

A kernel takes the format's own functions as constants: it is compiled with them as if they stood there.

    STORE(numbers, pages, scales, row, head, dims, SIZE)
        Store float32 [PADDED], zero beyond SIZE, as row `row` (block, head and offset in one) of head `head`.
    WIDEN(words, FACTOR)
        Words [N, W] of rows as what is multiplied: a tuple of matrices, see `packed.py`.
    ROW_SCALES, HEAD_SCALES
        What the scales belong to, if the format has any: to rows, [num_blocks, kv_heads, block_size], or to
        heads, [kv_heads].
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import triton.language as tl
from torch import Tensor

from gpu_worker.kernels.attention import LayerCache

Pointers = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""Keys, values, and their scales."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How rows are read, for products of one type of numbers."""

    widen: Any
    """The function WIDEN."""
    word: torch.dtype | None = None
    """What pages are seen as; None: as what they are."""
    each: int = 1
    """Numbers of a word."""


class TritonFormat:
    """A `KvFormat` that the kernels know."""

    row_scales: ClassVar[bool] = False
    head_scales: ClassVar[bool] = False
    stored: ClassVar[torch.dtype | None] = None
    """What STORE sees pages as; None: as what they are."""
    store_row: Any
    """The function STORE."""

    def reading(self, factor: tl.dtype) -> Reading:
        """`factor`: type of the numbers that are multiplied."""
        raise NotImplementedError


def format_of(cache: LayerCache) -> TritonFormat:
    """The format of these pages."""
    assert isinstance(cache.format, TritonFormat)
    return cache.format


def pointers(cache: LayerCache, word: torch.dtype | None) -> Pointers:
    """As kernels take them, with pages seen as `word`."""
    keys, values = cache.keys, cache.values
    if word is not None:
        keys, values = keys.view(word), values.view(word)
    return keys, values, cache.key_scales, cache.value_scales
