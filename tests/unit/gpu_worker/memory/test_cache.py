"""Pages of any format: what they take, on every back end that has it."""

import pytest
import torch

from gpu_worker.kernels.cpu import kv as cpu
from gpu_worker.kernels.kv_sizes import AUTO, ROW_BYTES, PageShape
from gpu_worker.kernels.reference import kv as reference
from gpu_worker.kernels.triton import kv as triton
from gpu_worker.memory.cache import bytes_per_block, make_caches
from gpu_worker.models.config import Shape, read_config

CPU = torch.device("cpu")

BACK_ENDS = {
    "torch": reference.FORMATS,
    "cpp": cpu.FORMATS,
    "triton": {name: lambda dtype, make=make: make(dtype, CPU) for name, make in triton.FORMATS.items()},
}
FORMATS = [(back_end, name) for back_end, formats in BACK_ENDS.items() for name in formats]


class Mixed(Shape):
    """Of a model whose layers have pages of different sizes; the second has none."""

    pages = (PageShape(1, 20, 16, shared=True), PageShape(2, 24, 24))


def test_every_format_has_a_reference_and_none_is_unknown() -> None:
    assert set(reference.FORMATS) == {AUTO, *ROW_BYTES}
    for formats in BACK_ENDS.values():
        assert AUTO in formats
        assert set(formats) <= set(reference.FORMATS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("back_end", "name"), FORMATS)
def test_pages_take_what_is_said(tiny, back_end: str, name: str, dtype: torch.dtype, mixed: bool) -> None:
    several = Mixed("any", 97, 32, 3, 64, (0, 0, 0), torch.float32)
    config = several if mixed else read_config(tiny.directory)
    kv = BACK_ENDS[back_end][name](dtype)
    assert kv.name == (str(dtype).removeprefix("torch.") if name == AUTO else name)
    caches = make_caches(config, 9, 4, kv, CPU)
    tensors = [tensor for cache in caches for tensor in cache.tensors()]
    assert {len(tensor) for tensor in tensors} == {9}
    assert sum(tensor.nbytes for tensor in tensors) == 9 * bytes_per_block(config, 4, kv)
    assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors)
    for cache, pages in zip(caches, config.pages, strict=True):
        assert (cache.format, cache.shape, cache.block_size) == (kv, pages, 4)
        assert (cache.values is cache.keys) == pages.shared
        assert cache.key_scales is None or (cache.value_scales is cache.key_scales) == pages.shared
