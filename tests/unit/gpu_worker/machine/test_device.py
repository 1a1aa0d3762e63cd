"""What is asked of a GPU after an error."""

import pytest
import torch

from gpu_worker.machine.device import is_lost


def fails(device):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(("synchronize", "lost"), [(fails, True), (lambda device: None, False)])
def test_a_gpu_is_lost_if_it_does_not_even_come_to_an_end(monkeypatch, synchronize, lost) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert is_lost(torch.device("cuda")) is lost


def test_a_cpu_goes_on() -> None:
    assert not is_lost(torch.device("cpu"))
