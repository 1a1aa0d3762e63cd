"""Pages of the activations' own type, in plain PyTorch; and what all formats have in common."""

import torch
from torch import Tensor

from gpu_worker.kernels.attention import LayerCache, Places, Take
from gpu_worker.kernels.kv_sizes import PageShape, token_bytes


class Plain:
    """See `KvFormat`. Other formats override what differs: the numbers, and the scales beside them."""

    largest: float | None = None

    def __init__(self, dtype: torch.dtype) -> None:
        """`dtype`: of the activations."""
        self.name = str(dtype).removeprefix("torch.")
        self._numbers = dtype

    def token_bytes(self, shape: PageShape) -> int:
        return token_bytes(shape, self.name)

    def allocate(self, shape: PageShape, blocks: int, block_size: int, take: Take) -> LayerCache:
        rows = (blocks, shape.heads, block_size)
        kept = [take((*rows, size), self._numbers) for size in shape.rows]
        scales = [self._scales(each, take) for each in kept]
        return LayerCache(self, shape, kept[0], kept[-1], scales[0], scales[-1])

    def in_blocks(self, cache: LayerCache) -> list[Tensor]:
        return [cache.keys] if cache.shape.shared else [cache.keys, cache.values]

    def set_scales(self, cache: LayerCache, scales: Tensor) -> None:
        raise NotImplementedError(f"{self.name} has no scales of heads")

    def store(self, cache: LayerCache, places: Places, keys: Tensor, values: Tensor | None = None) -> None:
        self._put(cache.keys, cache.key_scales, places, keys)
        if values is not None:
            self._put(cache.values, cache.value_scales, places, values)

    def load(self, cache: LayerCache, places: Places, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        keys = self._get(cache.keys, cache.key_scales, places, dtype)
        if cache.shape.shared:
            return keys, keys[..., : cache.shape.value_size]
        return keys, self._get(cache.values, cache.value_scales, places, dtype)

    def _scales(self, pages: Tensor, take: Take) -> Tensor | None:
        """What is kept beside the numbers of `pages`."""
        return None

    def _put(self, pages: Tensor, scales: Tensor | None, places: Places, rows: Tensor) -> None:
        pages[places] = rows.to(pages.dtype)

    def _get(self, pages: Tensor, scales: Tensor | None, places: Places, dtype: torch.dtype) -> Tensor:
        return pages[places].to(dtype)
