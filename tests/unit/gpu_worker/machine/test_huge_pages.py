"""Memory is handed out in whole cache lines, and can be asked for before it is needed."""

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from gpu_worker.machine.huge_pages import (
    _M_MMAP_THRESHOLD,
    _M_TRIM_THRESHOLD,
    CHUNK,
    LINE,
    Memory,
    forget,
    keep_freed_memory,
    populate,
)

MAP = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (.*?)(?=^[0-9a-f]+-[0-9a-f]+ |\Z)", re.MULTILINE | re.DOTALL)
RESIDENT = re.compile(r"^Rss: +(\d+) kB", re.MULTILINE)


def resident(tensors: Sequence[Tensor]) -> int:
    """Bytes of main memory that the maps have in which the tensors are.

    Not of the whole process: a system that is short of memory may take pages of its libraries at any time.
    """
    maps, size = Path("/proc/self/smaps").read_text(encoding="utf-8"), 0
    for first, last, rest in MAP.findall(maps):
        if any(int(first, 16) <= tensor.data_ptr() < int(last, 16) for tensor in tensors):
            size += int(RESIDENT.search(rest)[1]) * 1024
    return size


def test_pieces_are_zero_and_do_not_overlap() -> None:
    memory = Memory()
    pieces = [memory.take(words) for words in (1, 17, 100, CHUNK // 4, 5)]
    assert all(piece.data_ptr() % LINE == 0 and not piece.any() for piece in pieces)
    for number, piece in enumerate(pieces):
        piece.fill_(number + 1)
    assert [piece.unique().tolist() for piece in pieces] == [[1], [2], [3], [4], [5]]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_memory_is_there_before_it_is_written_to() -> None:
    memory = Memory()
    tensors = [memory.take(12 << 20), memory.take(5 << 20), memory.take(3)]
    tensors[0][:100] = torch.arange(100)
    tensors[1][-1] = 7
    before = resident(tensors)
    populate(tensors).join()
    assert resident(tensors) - before > 48 << 20  # of 68; what is beside them in their maps varies
    assert tensors[0][:100].tolist() == list(range(100))
    assert tensors[1][-1] == 7
    assert tensors[0].count_nonzero() == 99


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_what_was_read_from_a_file_counts_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.arange(100, dtype=torch.float32), "b": torch.ones(8 << 20)}, path)
    with safe_open(path, framework="pt") as file:
        first, second = file.get_tensor("a"), file.get_tensor("b")
        maps = [range(second.data_ptr(), first.data_ptr() + first.nbytes)]
        if first.data_ptr() < second.data_ptr():
            maps = [range(first.data_ptr(), second.data_ptr() + second.nbytes)]
        assert second.sum() == 8 << 20
        before = resident([first, second])
        forget(second, maps)
        forget(first, maps)
        assert before - resident([first, second]) > 30 << 20
        # They can still be read: from the file again.
        assert torch.equal(first, torch.arange(100, dtype=torch.float32))
        assert second.sum() == 8 << 20


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_nothing_is_left_of_small_tensors_beside_large_ones(tmp_path: Path) -> None:
    """Reading one maps its neighbors, too, though they were forgotten."""
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(64 << 20))
    file = torch.from_file(str(path), size=64 << 20, dtype=torch.uint8)
    maps, small = [range(file.data_ptr(), file.data_ptr() + file.nbytes)], 3000
    before = resident([file])
    for tensor in (part for piece in file.split(100_000) for part in (piece[small:], piece[:small])):
        assert not tensor.any()
        forget(tensor, maps)
    assert resident([file]) - before < 2 << 20


def test_what_lies_in_no_file_is_left() -> None:
    kept = torch.ones(1 << 20)
    forget(kept, [range(kept.data_ptr() + 4, kept.data_ptr() + kept.nbytes)])
    assert kept.all()


def test_an_old_c_library_keeps_as_much_as_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """glibc before 2.35 refuses a threshold for mappings of more than 32 MiB."""
    told = []

    def mallopt(threshold: int, size: int) -> int:
        if threshold == _M_MMAP_THRESHOLD and size > 32 << 20:
            return 0
        told.append((threshold, size))
        return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    keep_freed_memory()
    assert told == [(_M_MMAP_THRESHOLD, 32 << 20), (_M_TRIM_THRESHOLD, 1 << 30)]
