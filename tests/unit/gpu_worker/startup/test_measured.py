"""The faster back end for products in bfloat16 is taken: measured once on a machine, then remembered."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.cpu.kernels import CpuKernels, MatrixUnitKernels
from gpu_worker.startup import backend, measured
from gpu_worker.startup.measured import Measured
from tests.support.native import NO_ONEDNN_BFLOAT16, with_team

EQUAL = Measured((1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 3.0, 4.0))
ONEDNN_IS_FASTER = Measured((1.0, 2.0, 9.0, 9.0), (1.0, 1.9, 3.0, 3.0))
ONLY_FOR_ONE_ROW = Measured((4.0, 1.0, 1.0, 1.0), (1.0, 2.0, 2.0, 2.0))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what was measured, empty; and a measurement that takes no time."""
    monkeypatch.setattr(build, "cache", lambda: tmp_path)
    monkeypatch.setattr(measured, "SECONDS", 0.0)
    return tmp_path


@pytest.mark.parametrize(
    ("times", "taken"), [(EQUAL, False), (ONEDNN_IS_FASTER, True), (ONLY_FOR_ONE_ROW, False)]
)
def test_what_is_faster_on_average_is_taken(times: Measured, taken: bool) -> None:
    assert times.takes_onednn is taken


@pytest.mark.skipif(bool(NO_ONEDNN_BFLOAT16), reason=NO_ONEDNN_BFLOAT16)
def test_measured_once_and_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kept / "config.json").write_text('{"hidden_size": 64}')
    library = with_team(build.supported()[0], 1)
    found = measured.products(library, kept, 1)
    assert [len(times) for times in found] == [len(measured.ROWS)] * 2
    assert all(time > 0 for times in found for time in times)
    monkeypatch.setattr(measured, "measure", None)  # whoever measures again fails
    assert measured.products(library, kept, 1) == found
    with pytest.raises(TypeError):
        measured.products(library, kept, 2)  # two threads are another machine


def test_what_cannot_be_read_is_measured_again(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "measure", lambda *_: EQUAL)
    library = with_team(build.supported()[0], 1)
    assert measured.products(library, kept, 1) == EQUAL
    (written,) = kept.glob("products-*.json")
    times = {"cpp": [1.0], "onednn": [1.0]}
    zeros = {"cpp": [0.0] * 4, "onednn": [1.0] * 4}
    for broken in ("", "[]", '{"cpp": 1}', *map(json.dumps, (times, {"cpp": [1.0], "gpu": [1.0]}, zeros))):
        written.write_text(broken)
        assert measured.products(library, kept, 1) == EQUAL


def test_an_instruction_set_that_is_forced_is_measured_for_itself(kept: Path, monkeypatch) -> None:
    monkeypatch.setattr(measured, "measure", lambda *_: EQUAL)
    library = with_team(build.supported()[0], 1)
    for forced in ("AVX512_CORE", "AVX2"):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", forced)
        measured.products(library, kept, 1)
    assert len(list(kept.glob("products-*.json"))) == 2


def test_ranks_compute_with_the_same_library(settings, monkeypatch) -> None:
    """A rank that has measured otherwise than another one follows it."""
    monkeypatch.setattr(backend, "has_onednn_bfloat16", lambda: True)
    monkeypatch.setattr(measured, "products", lambda *_: ONEDNN_IS_FASTER)
    asked = settings(dtype="bfloat16", threads=1)
    other = SimpleNamespace(least=lambda number: min(number, 0))
    assert type(backend.kernels_of(asked, backend.device_of(asked), other)) is CpuKernels


@pytest.mark.parametrize("config", ["", "{}", "[]", '{"hidden_size": 1e400}', '{"hidden_size": "many"}'])
def test_a_configuration_without_a_size(kept: Path, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(measured, "measure", lambda library, size, threads: sizes.append(size) or EQUAL)
    (kept / "config.json").write_text(config)
    measured.products(with_team(build.supported()[0], 1), kept, 1)
    assert sizes == [2048]


@pytest.mark.parametrize(("times", "kind"), [(EQUAL, CpuKernels), (ONEDNN_IS_FASTER, MatrixUnitKernels)])
def test_the_log_has_the_times(
    settings, monkeypatch, caplog, times: Measured, kind: type[CpuKernels]
) -> None:
    monkeypatch.setattr(backend, "has_onednn_bfloat16", lambda: True)
    monkeypatch.setattr(measured, "products", lambda *_: times)
    caplog.set_level("INFO")
    asked = settings(dtype="bfloat16", threads=1)
    assert type(backend.kernels_of(asked, backend.device_of(asked))) is kind
    assert "products by oneDNN: 1 rows 1 ms" in caplog.text


def test_float32_has_no_choice(settings, monkeypatch) -> None:
    monkeypatch.setattr(measured, "products", None)
    asked = settings(dtype="float32", threads=1)
    assert type(backend.kernels_of(asked, backend.device_of(asked))) is CpuKernels


def test_onednn_without_products_in_bfloat16_is_refused(settings, monkeypatch) -> None:
    monkeypatch.setattr(backend, "has_onednn_bfloat16", lambda: False)
    asked = settings(dtype="bfloat16", kernels="onednn")
    with pytest.raises(backend.KernelError, match="no bfloat16 on this processor"):
        backend.kernels_of(asked, backend.device_of(asked))
