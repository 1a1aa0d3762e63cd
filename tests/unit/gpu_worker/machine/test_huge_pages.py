"""Memory is handed out in whole cache lines, and can be asked for before it is needed."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from gpu_worker.machine.huge_pages import CHUNK, LINE, Memory, forget, populate


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


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_what_was_read_from_a_file_counts_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.arange(100, dtype=torch.float32), "b": torch.ones(8 << 20)}, path)
    with safe_open(path, framework="pt") as file:
        first, second = file.get_tensor("a"), file.get_tensor("b")
        assert second.sum() == 8 << 20
        before = resident()
        forget(second)
        forget(first)
        assert before - resident() > 30 << 20
        # They can still be read: from the file again.
        assert torch.equal(first, torch.arange(100, dtype=torch.float32))
        assert second.sum() == 8 << 20
