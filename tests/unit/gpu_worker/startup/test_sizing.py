"""How much of a GPU pages take: the GPU is one that counts bytes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_worker.errors import OutOfMemoryError
from gpu_worker.memory.cache import GPU_SHARE
from gpu_worker.models.ranks import ALONE
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup import sizing
from tests.unit.gpu_worker.conftest import make_limits


class Memory:
    """Memory of which work takes some, and gives it back."""

    allocated = highest = 100

    def take(self, count: int) -> None:
        self.highest = max(self.highest, self.allocated + count)

    def reset(self, device: torch.device) -> None:
        self.highest = self.allocated


@pytest.mark.parametrize(("tower", "taken"), [(None, 300), (50, 350), (400, 700)])
def test_pages_leave_room_for_a_step_and_an_image_at_once(
    tower: int | None, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory()
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", memory.reset)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: memory.allocated)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: memory.highest)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    whole = SimpleNamespace(total_memory=10_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: whole)
    monkeypatch.setattr(sizing, "free_memory", lambda device: 8_000)
    monkeypatch.setattr(sizing, "full_step", lambda limits: 300)
    sees = None if tower is None else SimpleNamespace(rehearse=lambda: memory.take(tower))
    parts: Any = SimpleNamespace(
        device=torch.device("cuda"),
        runner=lambda limits: SimpleNamespace(execute=memory.take),
        model=SimpleNamespace(tower=sees),
    )
    left = sizing._left_on_gpu(parts, make_limits(), 1.0)
    assert left == int((8_000 - taken) * GPU_SHARE)


def test_a_gpu_that_has_no_memory_for_what_is_timed(
    make: SimpleNamespace, tiny: Any, monkeypatch: Any
) -> None:
    def refuse(runner: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(sizing, "host_offer", refuse)
    runner = make.runner(tiny.directory)
    settings = WorkerSettings(model=tiny.directory, host_memory=2**20)
    with pytest.raises(OutOfMemoryError, match="no memory on cpu beside weights and KV memory for a step of"):
        sizing.add_host_memory(settings, runner, ALONE)
