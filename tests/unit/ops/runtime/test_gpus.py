"""Workers of one deployment and the GPUs of its machine."""

from pathlib import Path

import pytest

from ops.launcher.acl import CHAIN
from ops.launcher.specs import Options, service_specs
from ops.runtime import gpus


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with four GPUs, of which two have gone in the middle."""
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    for name in ("nvidia0", "nvidia3", "nvidia4", "nvidia5", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    for name in ("CUDA_VISIBLE_DEVICES", "QUIRE_TENSOR_PARALLEL", "QUIRE_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def told(workers: int) -> list[str | None]:
    specs = service_specs(Options(workers=workers), dict.fromkeys(CHAIN, "redis://127.0.0.1:1/0"))
    assert not any("CUDA_VISIBLE_DEVICES" in spec.environment for spec in specs[workers:])
    return [spec.environment.get("CUDA_VISIBLE_DEVICES") for spec in specs[:workers]]


def shares_told(workers: int, **options: str) -> list[str | None]:
    specs = service_specs(Options(workers=workers, **options), dict.fromkeys(CHAIN, "redis://127.0.0.1:1/0"))
    return [spec.environment.get("QUIRE_MEMORY_SHARE") for spec in specs[:workers]]


def test_workers_share_the_memory_of_what_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_MEMORY_SHARE", raising=False)
    assert shares_told(1, device="cpu") == [None]
    assert shares_told(2, device="cpu") == ["0.5000", "0.5000"]
    assert shares_told(4) == [None] * 4, "each has a GPU of its own"
    assert shares_told(5) == ["0.2000"] * 5
    monkeypatch.setenv("QUIRE_MEMORY_SHARE", "0.3")
    assert shares_told(5) == ["0.3"] * 5


def test_each_worker_has_a_gpu_of_its_own() -> None:
    assert told(3) == ["0", "1", "2"]


def test_one_worker_chooses_itself() -> None:
    assert told(1) == [None]


def test_several_gpus_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_TENSOR_PARALLEL", "2")
    assert told(2) == ["0,1", "2,3"]


def test_of_those_that_may_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7f,5")
    assert told(2) == ["GPU-7f", "5"]


def test_all_that_are_present_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which a worker sees but one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert gpus.present() == 4


@pytest.mark.parametrize("visible", ["", "3"])
def test_too_few_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert told(2) == [None, None]
