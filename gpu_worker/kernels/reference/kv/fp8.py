"""Pages of fp8, in plain PyTorch: numbers with an exponent, and one scale for each head.

    keys, values     e4m3 [num_blocks, kv_heads, block_size, size]
    their scales     float32 [kv_heads]: the same for all time

Numbers with an exponent keep their precision over 14 binades. So one scale for a head will do, and nothing is
kept beside them in blocks.
"""

import torch
from torch import Tensor

from gpu_worker.kernels.attention import LayerCache, Places, Take
from gpu_worker.kernels.reference.kv.plain import Plain
from gpu_worker.kernels.reference.rows import FP8, LARGEST, saturated, widened


class Fp8(Plain):
    """See `KvFormat`. Not everything can copy fp8, or put it into its place: then it goes as bytes."""

    largest = LARGEST

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(FP8)
        self.name = "fp8"

    def in_blocks(self, cache: LayerCache) -> list[Tensor]:
        return [each.view(torch.uint8) for each in super().in_blocks(cache)]

    def set_scales(self, cache: LayerCache, scales: Tensor) -> None:
        for own, given in zip((cache.key_scales, cache.value_scales), scales, strict=True):
            assert own is not None
            own.copy_(given)

    def _scales(self, pages: Tensor, take: Take) -> Tensor | None:
        return torch.ones(pages.shape[1], device=pages.device)

    def _put(self, pages: Tensor, scales: Tensor | None, places: Places, rows: Tensor) -> None:
        assert scales is not None
        pages.view(torch.uint8)[places] = saturated(rows, scales).view(torch.uint8)

    def _get(self, pages: Tensor, scales: Tensor | None, places: Places, dtype: torch.dtype) -> Tensor:
        assert scales is not None
        return widened(pages.view(torch.uint8)[places].view(FP8).float(), scales, dtype)
