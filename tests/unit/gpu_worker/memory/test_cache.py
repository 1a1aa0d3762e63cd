"""Pages of any type, and copies of whole blocks."""

import pytest
import torch

from gpu_worker.kernels.interface import FP8
from gpu_worker.memory.cache import bytes_per_block, copy_blocks, make_caches
from gpu_worker.models.config import PageShape, Shape, read_config


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, FP8])
def test_a_copy_has_all_of_a_block_and_touches_no_other(tiny, dtype) -> None:
    caches = make_caches(read_config(tiny.directory), 9, 4, dtype, torch.device("cpu"))
    tensors = [tensor for cache in caches for tensor in cache.tensors()]
    assert len(tensors) == len(caches) * (4 if dtype == torch.int8 else 2)
    for tensor in tensors:
        tensor.copy_(torch.randint(100, tensor.shape))
    before = [tensor.clone() for tensor in tensors]
    copy_blocks(caches, torch.tensor([3, 3, 5]), torch.tensor([0, 8, 2]))
    for tensor, old in zip(tensors, before, strict=True):
        assert tensor[[0, 8, 2]].equal(old[[3, 3, 5]])
        assert tensor[[1, 3, 4, 5, 6, 7]].equal(old[[1, 3, 4, 5, 6, 7]])


class Latent(Shape):
    """Of any model with shared pages."""

    pages = PageShape(1, 20, 16, shared=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, FP8])
def test_shared_pages_are_stored_once(dtype: torch.dtype) -> None:
    config = Latent("any", 97, 32, 3, 1, 4, 64, (0, 0, 0), torch.float32)
    caches = make_caches(config, 9, 4, dtype, torch.device("cpu"))
    tensors = [tensor for cache in caches for tensor in cache.tensors()]
    assert sum(tensor.nbytes for tensor in tensors) == 9 * bytes_per_block(config, 4, dtype)
    for cache in caches:
        cache.keys.copy_(torch.randint(-100, 100, cache.keys.shape))
        assert cache.values.shape == (9, 1, 4, 16)
        assert cache.values.float().equal(cache.keys[..., :16].float())
        assert cache.value_scales is cache.key_scales
    before = [cache.values.clone() for cache in caches]
    copy_blocks(caches, torch.tensor([3]), torch.tensor([8]))
    assert all(
        cache.values[8].float().equal(old[3].float()) for cache, old in zip(caches, before, strict=True)
    )
