"""Blocks go to host memory and come back as they were."""

from collections.abc import Callable
from errno import ENOMEM
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.errors import CapacityError, OutOfMemoryError, PlanError
from gpu_worker.kernels.reference.kv import FORMATS
from gpu_worker.machine.huge_pages import Memory
from gpu_worker.memory import host
from gpu_worker.memory.cache import make_caches
from gpu_worker.memory.host import HostPages, slots_within
from gpu_worker.models.config import read_config
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]


def numbers(*values: int) -> Any:
    return np.array(values, np.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv", FORMATS)
@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("slots_of_a_piece", [1, 2, 100])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_what_comes_back_is_what_went(
    tiny, monkeypatch, kv, dtype, block_size, slots_of_a_piece, at_once
) -> None:
    """Whatever the order of blocks and slots, across pieces of memory, and in parts."""
    form = FORMATS[kv](dtype)
    caches = make_caches(read_config(tiny.directory), 9, block_size, form, torch.device("cpu"))
    monkeypatch.setattr(host, "PIECE", slots_of_a_piece * HostPages(caches, 0).block_bytes)
    monkeypatch.setattr(host, "BUFFER", at_once * HostPages(caches, 0).block_bytes)
    tensors = [tensor for cache in caches for tensor in cache.tensors()]
    for tensor in tensors:
        tensor.copy_(torch.randint(100, tensor.shape))
    before = [tensor.clone() for tensor in tensors]
    pages = HostPages(caches, 7)
    assert pages.block_bytes == sum(tensor[0].nbytes for tensor in tensors)
    pages.swap_out(numbers(3, 8, 0, 5), numbers(6, 1, 2, 0))
    for tensor in tensors:
        tensor.zero_()
    pages.swap_in(numbers(0, 6, 2, 1), numbers(2, 3, 7, 4))
    for tensor, old in zip(tensors, before, strict=True):
        assert tensor[[2, 3, 7, 4]].equal(old[[5, 3, 0, 8]])
        assert not tensor[[0, 1, 5, 6, 8]].any()


def test_a_sequence_goes_on_from_blocks_that_were_away(make: SimpleNamespace, tiny: SimpleNamespace) -> None:
    """Its tokens are those of transformers, though its blocks were overwritten and others hold it now."""
    runner = make.runner(tiny.directory)
    runner.host = HostPages(runner.caches, 4)

    def step(number: int, rows: list[tuple[int, int, int, int]], **fields: Any) -> list[int]:
        result = runner.execute(make.plan(number, rows, **fields))
        assert not result.errors
        return list(make.unpack(result.tokens))

    found = step(1, [(0, 0, 10, 1)], new_slots=[make.slot(0, PROMPT, [5, 6, 7])])
    away = {"swap_out": ([6, 5], [0, 3])}
    other = make.slot(1, [7, 9, 11, 13, 15, 17, 19, 21], [6, 5])  # overwrites both in the same step
    step(2, [(1, 0, 8, 1)], freed_slots=[0], new_slots=[other], **away)
    back = {"swap_in": ([3, 0], [20, 21])}
    again = make.slot(0, PROMPT + found, [20, 21, 22], prompt_length=len(PROMPT))
    found += step(3, [(0, 8, 3, 1)], new_slots=[again], **back)
    assert found == make.expected(tiny.model, PROMPT, 2)


BAD = {
    "no such slot": {"swap_out": ([5], [4])},
    "a negative slot": {"swap_in": ([-1], [5])},
    "no such block": {"swap_out": ([64], [0])},
    "a negative block": {"swap_in": ([0], [-1])},
    "one slot for two": {"swap_out": ([5, 6], [1, 1])},
    "one block for two": {"swap_in": ([0, 2], [5, 5])},
    "an empty slot": {"swap_in": ([1], [5])},
    "lengths": {"swap_out": ([5, 6], [1])},
    "lengths in": {"swap_in": ([0, 2], [5])},
}


@pytest.mark.parametrize("what", BAD)
def test_swaps_that_cannot_be_are_refused(make: SimpleNamespace, tiny: SimpleNamespace, what: str) -> None:
    runner = make.runner(tiny.directory)
    runner.host = HostPages(runner.caches, 4)
    first = {"swap_out": ([5, 6], [0, 2])}
    runner.execute(make.plan(1, [(0, 0, 10, 1)], new_slots=[make.slot(0, PROMPT, [5, 6, 7])], **first))
    with pytest.raises(PlanError, match="swap"):
        runner.execute(make.plan(2, **BAD[what]))


def test_contents_do_not_outlive_the_call(make: SimpleNamespace, tiny: SimpleNamespace) -> None:
    runner = make.runner(tiny.directory)
    runner.host = HostPages(runner.caches, 4)
    out = {"swap_out": ([5], [0])}
    runner.execute(make.plan(1, [(0, 0, 10, 1)], new_slots=[make.slot(0, PROMPT, [5, 6, 7])], **out))
    runner.reset()
    with pytest.raises(PlanError, match="holds nothing"):
        runner.execute(make.plan(1, swap_in=([0], [5])))


class OnGpu:
    """Seven blocks of a tensor on a GPU."""

    device = torch.device("cuda")

    def __init__(self, block_bytes: int) -> None:
        self.nbytes = 7 * block_bytes

    def __len__(self) -> int:
        return 7


@pytest.mark.parametrize("mib", [0.3, 1.1, 3, 4.5, 9, 20, 33, 76, 300])
@pytest.mark.parametrize("memory", [3 << 30, (5 << 30) - 1])
def test_pinned_memory_is_no_more_than_was_asked_for(
    mib: float, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though PyTorch pins powers of two. Little is left over."""
    pinned = list[int]()

    def empty(size: int, **options: Any) -> Any:
        assert options["pin_memory"]
        pinned.append(1 << (size - 1).bit_length())
        return SimpleNamespace(view=lambda *shape: shape)

    monkeypatch.setattr(torch, "empty", empty)
    block_bytes = int(mib * 2**20)
    slots = slots_within(memory, block_bytes, pinned=True)
    cache: Any = SimpleNamespace(tensors=lambda: [OnGpu(block_bytes)])
    pages = HostPages([cache], slots)
    for slot in range(slots):
        pages._piece(slot // pages._per_piece)
    assert sum(pinned) <= memory
    assert max(pinned) <= max(16 << 20, 8 * block_bytes), "it is pinned while a step waits"
    assert slots * block_bytes > 7 / 8 * (memory - max(pinned)), "all but the last piece is full"


@pytest.fixture
def loaded(tiny: SimpleNamespace) -> Callable[..., Any]:
    def start(memory: str | None) -> Any:
        settings = {"model": tiny.directory, "device": "cpu", "threads": 1, "kv_memory": 2**20}
        return load(WorkerSettings(**settings, host_memory=memory, kernels="torch"))

    return start


def test_a_cpu_has_no_host_memory_unless_asked(loaded: Callable[..., Any], make: SimpleNamespace) -> None:
    for memory in (None, "0"):
        runner = loaded(memory)
        assert runner.host_offer.host_blocks == runner.host.slots == 0
        with pytest.raises(PlanError, match="slot"):
            runner.execute(make.plan(1, swap_out=([5], [0])))


def test_host_memory_says_what_it_costs(loaded: Callable[..., Any], make: SimpleNamespace) -> None:
    runner = loaded("3MiB")
    offer = runner.host_offer
    assert offer.host_blocks == runner.host.slots == 3 * 2**20 // runner.host.block_bytes
    assert min(offer.swap_block_us, offer.token_us) > 0
    result = runner.execute(make.plan(1, [(0, 0, 10, 1)], new_slots=[make.slot(0, PROMPT, [5])]))
    assert not result.errors, "measuring has left something behind"


def test_memory_that_the_system_does_not_give(tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes may have it, and end."""
    config, form, cpu = read_config(tiny.directory), FORMATS["auto"](torch.float32), torch.device("cpu")
    caches = make_caches(config, 9, 4, form, cpu)

    def refuse(memory: Memory, words: int) -> None:
        raise OSError(ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(Memory, "take", refuse)
    with pytest.raises(OutOfMemoryError, match="lower QUIRE_KV_MEMORY"):
        make_caches(config, 9, 4, form, cpu)
    with pytest.raises(OutOfMemoryError, match="lower QUIRE_HOST_MEMORY"):
        HostPages(caches, 7).populate()


@pytest.mark.parametrize(("memory", "error"), [("1B", CapacityError), ("1000TiB", OutOfMemoryError)])
def test_host_memory_that_cannot_be(loaded: Callable[..., Any], memory: str, error: type[Exception]) -> None:
    with pytest.raises(CapacityError, match="QUIRE_HOST_MEMORY") as caught:
        loaded(memory)
    assert caught.type is error
