"""Pages of int8, in plain PyTorch: whole numbers from -127 to 127, and a scale for each row.

keys, values     int8 [num_blocks, kv_heads, block_size, size]
their scales     float32 [num_blocks, kv_heads, block_size]: the row's largest number / 127
"""

import torch
from torch import Tensor

from gpu_worker.kernels.attention import LayerCache, Places, Take
from gpu_worker.kernels.reference.kv.plain import Plain
from gpu_worker.kernels.reference.rows import quantized, widened


class Int8(Plain):
    """See `KvFormat`."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(torch.int8)

    def in_blocks(self, cache: LayerCache) -> list[Tensor]:
        assert cache.key_scales is not None
        assert cache.value_scales is not None
        keys = [cache.keys, cache.key_scales]
        return keys if cache.shape.shared else [*keys, cache.values, cache.value_scales]

    def _scales(self, pages: Tensor, take: Take) -> Tensor | None:
        return take(pages.shape[:3], torch.float32)

    def _put(self, pages: Tensor, scales: Tensor | None, places: Places, rows: Tensor) -> None:
        assert scales is not None
        pages[places], scales[places] = quantized(rows)

    def _get(self, pages: Tensor, scales: Tensor | None, places: Places, dtype: torch.dtype) -> Tensor:
        assert scales is not None
        return widened(pages[places], scales[places], dtype)
