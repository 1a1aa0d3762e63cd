"""Pages whose numbers have fewer bits than the activations, in plain PyTorch.

             keys, values [num_blocks, kv_heads, block_size, head_dim]    what one is worth
    int8     whole numbers from -127 to 127                               the row's largest / 127
    fp8      e4m3: 3 bits of fraction, 2^-9 to 448                        of a head, the same for all time

A row is a position as one head sees it. Whole numbers need the scale of each row; numbers with an exponent
keep their precision over 14 binades, so that one scale for a head will do, and nothing is kept beside them.
"""

import torch
from torch import Tensor

from gpu_worker.kernels.interface import FP8, LayerCache

LEAST = 1e-30
"""Rows whose largest number is smaller are zero: its inverse would be infinite."""

LARGEST = 448.0
"""Of fp8."""

Places = tuple[Tensor, slice, Tensor]
"""Blocks, all heads, offsets in the blocks."""


def write_pages(cache: LayerCache, places: Places, keys: Tensor, values: Tensor | None = None) -> None:
    """Put keys and values [..., kv_heads, head_dim] into pages of any type; of shared ones keys alone."""
    key_worth, value_worth = (None, None) if cache.head_scales is None else cache.head_scales
    _write(cache.keys, cache.key_scales, key_worth, places, keys)
    if not cache.shared:
        assert values is not None
        _write(cache.values, cache.value_scales, value_worth, places, values)


def read_pages(cache: LayerCache, places: Places, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values at these places, [..., kv_heads, head_dim] each or value_size, rounded to `dtype`."""
    key_worth, value_worth = (None, None) if cache.head_scales is None else cache.head_scales
    keys = _read(cache.keys, cache.key_scales, key_worth, places, dtype)
    if cache.shared:
        return keys, keys[..., : cache.values.shape[3]]
    return keys, _read(cache.values, cache.value_scales, value_worth, places, dtype)


def _write(pages: Tensor, scales: Tensor | None, worth: Tensor | None, places: Places, rows: Tensor) -> None:
    """`scales`: of int8, of each row; `worth`: of fp8, of each head."""
    if worth is not None:
        # As bytes: not everything can put fp8 in its place.
        pages.view(torch.uint8)[places] = saturated(rows, worth).view(torch.uint8)
    elif scales is not None:
        pages[places], scales[places] = quantized(rows)
    else:
        pages[places] = rows


def _read(
    pages: Tensor, scales: Tensor | None, worth: Tensor | None, places: Places, dtype: torch.dtype
) -> Tensor:
    if worth is not None:
        return widened(pages.view(torch.uint8)[places].view(FP8).float(), worth, dtype)
    rows = pages[places]
    return rows.to(dtype) if scales is None else widened(rows, scales[places], dtype)


def quantized(rows: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """Rows [..., head_dim] as int8 or fp8, and their scales, float32 [...]; of a row with a NaN it is NaN."""
    rows, most = rows.float(), LARGEST if dtype == FP8 else 127
    largest = rows.abs().amax(-1)
    largest = torch.where(largest < LEAST, 0.0, largest)
    inverse = torch.where(largest == 0, 0.0, most / largest)
    numbers = rows * inverse[..., None]
    return (numbers if dtype == FP8 else numbers.round().nan_to_num()).to(dtype), largest / most


def saturated(rows: Tensor, scales: Tensor) -> Tensor:
    """Rows [..., head_dim] as fp8, one worth `scales` [...]; what is too large becomes the largest."""
    return (rows.float() * (1 / scales)[..., None]).clamp(-LARGEST, LARGEST).to(FP8)


def widened(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows [..., head_dim] times their scales [...], rounded to `dtype`."""
    return (numbers * scales[..., None]).to(dtype)
