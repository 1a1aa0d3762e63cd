"""Memory is handed out in whole cache lines, and can be asked for before it is needed."""

from pathlib import Path

import pytest
import torch

from gpu_worker.kernels.cpu.memory import CHUNK, LINE, Memory, populate


def resident() -> int:
    """Bytes of main memory that this process has."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_pieces_are_zero_and_do_not_overlap() -> None:
    memory = Memory()
    pieces = [memory.take(words) for words in (1, 17, 100, CHUNK // 4, 5)]
    assert all(piece.data_ptr() % LINE == 0 and not piece.any() for piece in pieces)
    for number, piece in enumerate(pieces):
        piece.fill_(number + 1)
    assert [piece.unique().tolist() for piece in pieces] == [[1], [2], [3], [4], [5]]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_memory_is_there_before_it_is_written_to() -> None:
    memory = Memory()
    tensors = [memory.take(12 << 20), memory.take(5 << 20), memory.take(3)]
    tensors[0][:100] = torch.arange(100)
    tensors[1][-1] = 7
    before = resident()
    populate(tensors).join()
    assert resident() - before > 60 << 20
    assert tensors[0][:100].tolist() == list(range(100))
    assert tensors[1][-1] == 7
    assert tensors[0].count_nonzero() == 99
