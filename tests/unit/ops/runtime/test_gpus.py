"""Workers of one deployment and the GPUs of its machine."""

from pathlib import Path

import pytest

from ops.launcher.acl import CHAIN
from ops.launcher.served import Served
from ops.launcher.specs import Options, memory_shares, service_specs
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


def test_images_may_be_large_where_workers_compute_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokens(**options: str) -> set[str | None]:
        specs = service_specs(Options(workers=2, **options), dict.fromkeys(CHAIN, "redis://127.0.0.1:1/0"))
        return {spec.environment.get("QUIRE_IMAGE_TOKENS") for spec in specs}

    monkeypatch.delenv("QUIRE_IMAGE_TOKENS", raising=False)
    assert tokens() == tokens(device="cuda") == {"4096"}
    assert tokens(device="cpu") == {None}
    monkeypatch.setenv("QUIRE_DEVICE", "cpu")
    assert tokens() == {None}
    assert tokens(device="auto") == {"4096"}
    for none in ("", "-1", " -1, 0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert tokens(device="auto") == {None}
    monkeypatch.setenv("QUIRE_IMAGE_TOKENS", "0")
    assert tokens(device="cuda") == {None}, "the processes have it from their environment"


def test_on_a_gpu_equal_parts_of_what_the_weights_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("QUIRE_MEMORY_SHARE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\n[ "$1" = --id=3 ] && echo 1000\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def parts(*weights: int, device: str | None = None) -> list[str]:
        told = gpus.shares(2, device, lambda: [size * 2**20 for size in weights])
        return [one["QUIRE_MEMORY_SHARE"] for one in told]

    assert parts(100, 500) == ["0.3000", "0.7000"], "200 beside the weights for each"
    assert parts(600, 500) == ["0.5000", "0.5000"], "they do not fit: the workers say so"
    assert parts() == ["0.5000", "0.5000"], "the files do not tell"
    assert parts(100, 500, device="cpu") == ["0.5000", "0.5000"], "of what is free beside the weights"
    monkeypatch.setenv("QUIRE_TENSOR_PARALLEL", "2")
    assert parts(100, 500) == ["0.4000", "0.6000"], "each rank has half of the weights"
    for broken in ("exit 1", "echo no", "exec sleep 60"):
        monkeypatch.setattr(gpus, "SMI_SECONDS", 0.3)
        smi.write_text(f"#!/bin/sh\n{broken}\n")
        assert parts(100, 500) == ["0.5000", "0.5000"]


def test_what_is_said_of_the_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIRE_MEMORY_SHARE", "QUIRE_KV_MEMORY"):
        monkeypatch.delenv(name, raising=False)
    redis = dict.fromkeys(CHAIN, "redis://127.0.0.1:1/0")
    two = Options(models=(Served(given="a"), Served(given="b")), device="cpu")
    assert memory_shares(service_specs(two, redis)) == "worker-a 50 %, worker-b 50 %"
    assert memory_shares(service_specs(Options(device="cpu"), redis)) == ""
    monkeypatch.setenv("QUIRE_KV_MEMORY", "16MiB")
    assert memory_shares(service_specs(two, redis)) == "", "each has 16 MiB"
    monkeypatch.delenv("QUIRE_KV_MEMORY")
    assert memory_shares(service_specs(Options(workers=2), redis)) == "", "each has a GPU of its own"


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
