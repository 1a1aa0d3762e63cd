"""Pages of any type, and copies of whole blocks."""

import pytest
import torch

from gpu_worker.cache import copy_blocks, make_caches
from gpu_worker.models.config import read_config


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_copy_has_all_of_a_block_and_touches_no_other(tiny, dtype) -> None:
    caches = make_caches(read_config(tiny.directory), 9, 4, dtype, torch.device("cpu"))
    tensors = [tensor for cache in caches for tensor in cache.tensors()]
    assert len(tensors) == len(caches) * (4 if dtype == torch.int8 else 2)
    for tensor in tensors:
        tensor.copy_(torch.randint(-100, 100, tensor.shape))
    before = [tensor.clone() for tensor in tensors]
    copy_blocks(caches, torch.tensor([3, 3, 5]), torch.tensor([0, 8, 2]))
    for tensor, old in zip(tensors, before, strict=True):
        assert tensor[[0, 8, 2]].equal(old[[3, 3, 5]])
        assert tensor[[1, 3, 4, 5, 6, 7]].equal(old[[1, 3, 4, 5, 6, 7]])
