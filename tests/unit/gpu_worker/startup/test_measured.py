"""The faster back end for products in bfloat16 is taken: measured once on a machine, then remembered."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.cpu.kernels import CpuKernels, OneDnnKernels
from gpu_worker.startup import backend, measured
from gpu_worker.startup.fingerprint import arithmetic_of
from gpu_worker.startup.measured import CPP, IN_PARTS, ONEDNN, Times
from tests.support.native import NO_ONEDNN_BFLOAT16, WITHOUT_UNITS, with_team

WAYS = (CPP, ONEDNN)
EQUAL = {CPP: (1.0, 2.0, 3.0, 4.0), ONEDNN: (1.0, 2.0, 3.0, 4.0)}
ONEDNN_IS_FASTER = {CPP: (1.0, 2.0, 9.0, 9.0), ONEDNN: (1.0, 1.9, 3.0, 3.0)}
ONLY_FOR_ONE_ROW = {CPP: (4.0, 1.0, 1.0, 1.0), ONEDNN: (1.0, 2.0, 2.0, 2.0)}
PARTS_ARE_FASTER = {CPP: (1.0, 1.0, 3.0, 3.0), IN_PARTS: (1.0, 1.0, 2.0, 2.0), ONEDNN: (1.0, 1.0, 2.1, 2.1)}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what was measured, empty; and a measurement that takes no time."""
    with_team(build.supported()[0], 1)  # otherwise it would be compiled once more, into this folder
    monkeypatch.setattr(build, "cache", lambda: tmp_path)
    monkeypatch.setattr(measured, "SECONDS", 0.0)
    return tmp_path


@pytest.mark.parametrize(
    ("times", "taken"),
    [(EQUAL, 0), (ONEDNN_IS_FASTER, 1), (ONLY_FOR_ONE_ROW, 0), (PARTS_ARE_FASTER, 1), ({CPP: (1.0,) * 4}, 0)],
)
def test_what_is_fastest_on_average_is_taken(times: Times, taken: int) -> None:
    assert measured.fastest(times) == taken


@pytest.mark.skipif(bool(NO_ONEDNN_BFLOAT16), reason=NO_ONEDNN_BFLOAT16)
def test_measured_once_and_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kept / "config.json").write_text('{"hidden_size": 64}')
    library = with_team(build.supported()[0], 1)
    found = measured.products(library, (CPP, IN_PARTS, ONEDNN), kept, 1)
    assert list(found) == [CPP, IN_PARTS, ONEDNN]
    assert all(len(times) == len(measured.ROWS) and min(times) > 0 for times in found.values())
    monkeypatch.setattr(measured, "measure", None)  # whoever measures again fails
    assert measured.products(library, (CPP, IN_PARTS, ONEDNN), kept, 1) == found
    for ways, threads in ((WAYS, 1), (tuple(found), 2)):  # two threads are another machine
        with pytest.raises(TypeError):
            measured.products(library, ways, kept, threads)


def test_what_slows_the_machine_down_for_some_time_slows_no_way_alone(monkeypatch) -> None:
    """Each is measured in turns, and its least time counts."""
    library = with_team(build.supported()[0], 1)
    rounds = [(9.0, 9.0), (9.0, 2.0), (3.0, 9.0), (9.0, 9.0), (9.0, 9.0)]
    taken = iter([time for turn in rounds for way in turn for time in [way] * len(measured.ROWS)])
    monkeypatch.setattr(measured, "_milliseconds", lambda *_: next(taken))
    found = measured.measure(library, (CPP, IN_PARTS), 64, 1)
    assert found == {CPP: (3.0,) * 4, IN_PARTS: (2.0,) * 4}
    assert next(taken, None) is None


def test_what_cannot_be_read_is_measured_again(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "measure", lambda *_: EQUAL)
    library = with_team(build.supported()[0], 1)
    assert measured.products(library, WAYS, kept, 1) == EQUAL
    (written,) = kept.glob("products-*.json")
    times = {CPP: [1.0], ONEDNN: [1.0]}
    zeros = {CPP: [0.0] * 4, ONEDNN: [1.0] * 4}
    for broken in ("", "[]", '{"C++": 1}', *map(json.dumps, (times, {CPP: [1.0], "gpu": [1.0]}, zeros))):
        written.write_text(broken)
        assert measured.products(library, WAYS, kept, 1) == EQUAL


def test_an_instruction_set_that_is_forced_is_measured_for_itself(kept: Path, monkeypatch) -> None:
    monkeypatch.setattr(measured, "measure", lambda *_: EQUAL)
    library = with_team(build.supported()[0], 1)
    for forced in ("AVX512_CORE", "AVX2"):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", forced)
        measured.products(library, WAYS, kept, 1)
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
    monkeypatch.setattr(measured, "measure", lambda library, ways, size, threads: sizes.append(size) or EQUAL)
    (kept / "config.json").write_text(config)
    measured.products(with_team(build.supported()[0], 1), WAYS, kept, 1)
    assert sizes == [2048]


@pytest.mark.parametrize(("times", "kind"), [(EQUAL, CpuKernels), (ONEDNN_IS_FASTER, OneDnnKernels)])
def test_the_log_has_the_times(settings, monkeypatch, caplog, times: Times, kind: type[CpuKernels]) -> None:
    monkeypatch.setattr(backend, "has_onednn_bfloat16", lambda: True)
    monkeypatch.setattr(measured, "products", lambda *_: times)
    monkeypatch.setattr(build, "supported", lambda: WITHOUT_UNITS)
    caplog.set_level("INFO")
    asked = settings(dtype="bfloat16", threads=1)
    assert type(backend.kernels_of(asked, backend.device_of(asked))) is kind
    assert "products by oneDNN: 1 rows 1 ms" in caplog.text


@pytest.mark.parametrize("times", [EQUAL, PARTS_ARE_FASTER])
def test_pairs_are_multiplied_in_the_faster_way(settings, monkeypatch, times: Times) -> None:
    """That is measured for an instruction set that is forced, too, but oneDNN is not taken then."""
    asked = settings(dtype="bfloat16", threads=1, kernels=WITHOUT_UNITS[0])
    ways: list[str] = []

    def products(library: object, given: list[str], *_: object) -> Times:
        ways.extend(given)
        return {name: each for name, each in times.items() if name in given}

    monkeypatch.setattr(measured, "products", products)
    kernels = backend.kernels_of(asked, backend.device_of(asked))
    arithmetic = arithmetic_of(asked, kernels, torch.device("cpu"))
    pairs = kernels.library.quire_bfloat16_pairs(-1)
    kernels.library.quire_bfloat16_pairs(1)
    if WITHOUT_UNITS[0] == "avx512_bf16":
        assert ways == [CPP, IN_PARTS]
        assert pairs == (times is EQUAL)
        assert arithmetic == ("avx512_bf16" if times is EQUAL else "avx512_bf16 in two parts")
    else:  # there is nothing to choose
        assert (ways, pairs) == ([], -1)


@pytest.mark.skipif("amx" not in build.supported(), reason="there are no matrix units")
def test_matrix_units_leave_no_choice(settings, monkeypatch) -> None:
    monkeypatch.setattr(measured, "products", None)
    asked = settings(dtype="bfloat16", threads=1)
    kernels = backend.kernels_of(asked, backend.device_of(asked))
    assert type(kernels) is CpuKernels
    assert arithmetic_of(asked, kernels, torch.device("cpu")) == "amx"


def test_float32_has_no_choice(settings, monkeypatch) -> None:
    monkeypatch.setattr(measured, "products", None)
    asked = settings(dtype="float32", threads=1)
    assert type(backend.kernels_of(asked, backend.device_of(asked))) is CpuKernels


def test_onednn_without_products_in_bfloat16_is_refused(settings, monkeypatch) -> None:
    monkeypatch.setattr(backend, "has_onednn_bfloat16", lambda: False)
    asked = settings(dtype="bfloat16", kernels="onednn")
    with pytest.raises(backend.KernelError, match="no bfloat16 on this processor"):
        backend.kernels_of(asked, backend.device_of(asked))


def test_the_arithmetic_of_float32_has_no_parts(settings) -> None:
    asked = settings(dtype="float32", threads=1)
    kernels = backend.kernels_of(asked, backend.device_of(asked))
    before = kernels.library.quire_bfloat16_pairs(-1)
    kernels.library.quire_bfloat16_pairs(0)  # a model of bfloat16 in the same process
    try:
        assert arithmetic_of(asked, kernels, torch.device("cpu")) == build.supported()[0]
    finally:
        kernels.library.quire_bfloat16_pairs(max(before, 0))
