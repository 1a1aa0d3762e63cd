"""What tells workers apart whose answers differ."""

import os
import re
import shutil

import pytest
import torch

from gpu_worker.kernels.cpu import build, library, onednn
from gpu_worker.kernels.cpu.kernels import CpuKernels, OneDnnKernels
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.startup import fingerprint
from gpu_worker.startup.fingerprint import arithmetic_of, fingerprint_of, weights_of
from gpu_worker.startup.load import load
from tests.support.native import WITHOUT_UNITS, with_team


@pytest.fixture
def directory(tiny, tmp_path):
    shutil.copytree(tiny.directory, tmp_path / "model")
    return tmp_path / "model"


def test_a_copy_is_the_same_model(tiny, directory) -> None:
    (weights,) = directory.glob("*.safetensors")
    os.utime(weights, (1, 1))
    assert weights_of(directory) == weights_of(tiny.directory)


def test_other_weights_or_another_configuration_are_another_model(directory) -> None:
    found = [weights_of(directory)]
    (weights,) = directory.glob("*.safetensors")
    for place in (-1, 9, 8 + int.from_bytes(weights.read_bytes()[:8], "little")):
        content = bytearray(weights.read_bytes())
        content[place] ^= 1
        weights.write_bytes(content)
        found.append(weights_of(directory))
    with (directory / "config.json").open("a") as file:
        file.write(" ")
    found.append(weights_of(directory))
    (directory / "hf_quant_config.json").write_text("{}")
    found.append(weights_of(directory))
    weights.rename(weights.with_name("model-other.safetensors"))
    found.append(weights_of(directory))
    assert len(set(found)) == 7


def test_a_file_that_is_no_checkpoint_has_a_fingerprint_too(directory) -> None:
    (directory / "model.safetensors").write_bytes(b"\xff" * 100)
    assert weights_of(directory)
    (directory / "model.safetensors").write_bytes(b"")
    assert weights_of(directory)


def test_a_pipe_beside_the_weights_does_not_count(tiny, directory) -> None:
    os.mkfifo(directory / "other.safetensors")
    assert weights_of(directory) == weights_of(tiny.directory)


def test_formats_and_arithmetic_count(settings, directory) -> None:
    kernels, cpu = ReferenceKernels(), torch.device("cpu")
    chosen = [
        ({}, torch.float32),
        ({}, torch.bfloat16),
        ({"kv_dtype": "int8"}, torch.float32),
        ({"quantization": "int8"}, torch.float32),
        ({"tensor_parallel": 2}, torch.float32),
    ]
    found = {fingerprint_of(settings(model=directory, **more), kernels, dtype, cpu) for more, dtype in chosen}
    assert len(found) == len(chosen)
    # How much memory there is, or how many threads, does not.
    base = fingerprint_of(settings(model=directory), kernels, torch.float32, cpu)
    assert (
        fingerprint_of(settings(model=directory, threads=1, max_slots=3), kernels, torch.float32, cpu) == base
    )
    assert base in found


def test_the_code_counts(settings, directory, tmp_path, monkeypatch) -> None:
    """Of kernels and models; not of what only runs them."""

    def found() -> str:
        fingerprint.code.cache_clear()
        kernels, cpu = ReferenceKernels(), torch.device("cpu")
        return fingerprint_of(settings(model=directory), kernels, torch.float32, cpu)

    own = found()
    monkeypatch.setattr(fingerprint, "PACKAGE", shutil.copytree(fingerprint.PACKAGE, tmp_path / "package"))
    assert found() == own
    for place in ("service.py", "kernels/__pycache__/some.pyc"):
        path = tmp_path / "package" / place
        path.parent.mkdir(exist_ok=True)
        path.write_text("another one")
        assert found() == own
    seen = {own}
    for place in ("kernels/cpu/src/panels.h", "models/load.py"):
        with (tmp_path / "package" / place).open("a") as file:
            file.write(" ")
        seen.add(found())
    assert len(seen) == 3
    fingerprint.code.cache_clear()


def test_the_compiler_and_the_version_of_pytorch_count(settings, monkeypatch) -> None:
    """Compilers contract sums of products in different places."""
    compiled, cpu = with_team(build.supported()[0], 1), torch.device("cpu")
    assert re.search(r"\d+\.\d+", library.compiler(compiled))

    def found() -> str:
        return fingerprint_of(settings(), CpuKernels(compiled), torch.float32, cpu)

    seen = {found(), found()}
    monkeypatch.setattr(library, "compiler", lambda compiled: "another one")
    seen.add(found())
    monkeypatch.setattr(torch, "__version__", "2.0.0")
    seen.add(found())
    assert len(seen) == 3


def test_the_library_that_multiplies_counts(settings, monkeypatch) -> None:
    """C++ and oneDNN round differently: an answer of one must not silently go on with the other."""
    library, asked, cpu = with_team(build.supported()[0], 1), settings(dtype="bfloat16"), torch.device("cpu")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)

    def both() -> list[str]:
        return [
            fingerprint_of(asked, kind(library), torch.bfloat16, cpu) for kind in (CpuKernels, OneDnnKernels)
        ]

    cpp, onednn = both()
    assert cpp != onednn
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert both()[0] == cpp  # which does not use oneDNN
    assert both()[1] not in (cpp, onednn)


def test_a_processor_with_matrix_units_multiplies_in_another_way(settings, monkeypatch) -> None:
    library, cpu = with_team(WITHOUT_UNITS[0], 1), torch.device("cpu")
    monkeypatch.setattr(build, "supported", lambda: WITHOUT_UNITS)
    found, own = set(), build.features() - onednn.UNITS
    for features in (set(), {"amx_bf16"}):
        monkeypatch.setattr(build, "features", lambda features=features: own | features)
        for kind in (CpuKernels, OneDnnKernels):
            found.add(arithmetic_of(settings(), kind(library), cpu))
    assert len(found) == 3


def test_pytorch_computes_as_its_instruction_set_does(settings, monkeypatch) -> None:
    found = set()
    for capability in ("AVX2", "AVX512"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda name=capability: name)
        found.add(arithmetic_of(settings(), ReferenceKernels(), torch.device("cpu")))
    assert found == {"torch AVX2", "torch AVX512"}


def test_a_runner_has_one(settings) -> None:
    assert len(load(settings()).fingerprint) == 16
