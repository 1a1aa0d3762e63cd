"""The faster way to multiply pairs of bfloat16 is taken: measured once on a machine, then remembered."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import CpuKernels
from gpu_worker.startup import backend, bfloat16_products
from gpu_worker.startup.bfloat16_products import CPP, IN_PARTS, Times
from gpu_worker.startup.fingerprint import arithmetic_of
from tests.support.native import TESTED, WITHOUT_UNITS, with_team

EQUAL = {CPP: (1.0, 2.0, 3.0, 4.0), IN_PARTS: (1.0, 2.0, 3.0, 4.0)}
ONLY_FOR_ONE_ROW = {CPP: (4.0, 1.0, 1.0, 1.0), IN_PARTS: (1.0, 2.0, 2.0, 2.0)}
PARTS_ARE_FASTER = {CPP: (1.0, 1.0, 3.0, 3.0), IN_PARTS: (1.0, 1.0, 2.0, 2.0)}
PAIRS = pytest.mark.skipif(
    WITHOUT_UNITS[0] != "avx512_bf16", reason="no instruction for pairs of bfloat16 on this processor"
)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what was measured, empty; and a measurement that takes no time."""
    with_team(build.supported()[0], 1)  # otherwise it would be compiled once more, into this folder
    monkeypatch.setattr(build, "cache", lambda: tmp_path)
    monkeypatch.setattr(bfloat16_products, "SECONDS", 0.0)
    return tmp_path


@pytest.mark.parametrize(
    ("times", "taken"),
    [(EQUAL, 0), (ONLY_FOR_ONE_ROW, 0), (PARTS_ARE_FASTER, 1)],
)
def test_what_is_fastest_on_average_is_taken(times: Times, taken: int) -> None:
    assert bfloat16_products.fastest(times) == taken


def test_measured_once_and_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kept / "config.json").write_text('{"hidden_size": 64}')
    library = with_team(build.supported()[0], 1)
    found = bfloat16_products.known_times(library, kept, 1)
    assert list(found) == [CPP, IN_PARTS]
    assert all(len(times) == len(bfloat16_products.ROWS) and min(times) > 0 for times in found.values())
    monkeypatch.setattr(bfloat16_products, "measure", None)  # whoever measures again fails
    assert bfloat16_products.known_times(library, kept, 1) == found
    with pytest.raises(TypeError):
        bfloat16_products.known_times(library, kept, 2)  # two threads are another machine


def test_what_slows_the_machine_down_for_some_time_slows_no_way_alone(monkeypatch) -> None:
    """Each is measured in turns, and its least time counts."""
    library = with_team(build.supported()[0], 1)
    rounds = [(9.0, 9.0), (9.0, 2.0), (3.0, 9.0), (9.0, 9.0), (9.0, 9.0)]
    taken = iter([time for turn in rounds for way in turn for time in [way] * len(bfloat16_products.ROWS)])
    monkeypatch.setattr(bfloat16_products, "_milliseconds", lambda *_: next(taken))
    found = bfloat16_products.measure(library, 64, 1)
    assert found == {CPP: (3.0,) * 4, IN_PARTS: (2.0,) * 4}
    assert next(taken, None) is None


def test_what_cannot_be_read_is_measured_again(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfloat16_products, "measure", lambda *_: EQUAL)
    library = with_team(build.supported()[0], 1)
    assert bfloat16_products.known_times(library, kept, 1) == EQUAL
    (written,) = kept.glob("products-*.json")
    times = {CPP: [1.0], IN_PARTS: [1.0]}
    zeros = {CPP: [0.0] * 4, IN_PARTS: [1.0] * 4}
    for broken in ("", "[]", '{"C++": 1}', *map(json.dumps, (times, {CPP: [1.0], "gpu": [1.0]}, zeros))):
        written.write_text(broken)
        assert bfloat16_products.known_times(library, kept, 1) == EQUAL


def test_an_instruction_set_that_is_forced_is_measured_for_itself(kept: Path, monkeypatch) -> None:
    monkeypatch.setattr(bfloat16_products, "measure", lambda *_: EQUAL)
    library = with_team(build.supported()[0], 1)
    for forced in ("AVX512_CORE", "AVX2"):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", forced)
        bfloat16_products.known_times(library, kept, 1)
    assert len(list(kept.glob("products-*.json"))) == 2


@PAIRS
def test_ranks_compute_in_the_same_way(settings, monkeypatch) -> None:
    """A rank that has measured otherwise than another one follows it."""
    monkeypatch.setattr(bfloat16_products, "known_times", lambda *_: PARTS_ARE_FASTER)
    asked = settings(dtype="bfloat16", threads=1, kernels=WITHOUT_UNITS[0])
    other = SimpleNamespace(least=lambda number: min(number, 0))
    kernels = backend.kernels_of(asked, backend.device_of(asked), other)
    assert kernels.library.quire_bfloat16_pairs(-1) == 1


@pytest.mark.parametrize("config", ["", "{}", "[]", '{"hidden_size": 1e400}', '{"hidden_size": "many"}'])
def test_a_configuration_without_a_size(kept: Path, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(
        bfloat16_products, "measure", lambda library, size, threads: sizes.append(size) or EQUAL
    )
    (kept / "config.json").write_text(config)
    bfloat16_products.known_times(with_team(build.supported()[0], 1), kept, 1)
    assert sizes == [2048]


@PAIRS
@pytest.mark.parametrize("times", [EQUAL, PARTS_ARE_FASTER])
def test_pairs_are_multiplied_in_the_faster_way(settings, monkeypatch, caplog, times: Times) -> None:
    monkeypatch.setattr(bfloat16_products, "known_times", lambda *_: times)
    caplog.set_level("INFO")
    asked = settings(dtype="bfloat16", threads=1, kernels="avx512_bf16")
    kernels = backend.kernels_of(asked, backend.device_of(asked))
    arithmetic = arithmetic_of(asked, kernels, torch.device("cpu"))
    pairs = kernels.library.quire_bfloat16_pairs(-1)
    kernels.library.quire_bfloat16_pairs(1)
    assert type(kernels) is CpuKernels
    assert pairs == (times is EQUAL)
    assert arithmetic == ("avx512_bf16" if times is EQUAL else "avx512_bf16 in two parts")
    assert "products by C++ in two parts: 1 rows 1 ms" in caplog.text


@pytest.mark.parametrize("name", [name for name in build.supported() if name != "avx512_bf16"])
def test_where_there_is_no_choice_nothing_is_measured(settings, monkeypatch, name: str) -> None:
    """Nor is oneDNN asked, whose rows depend on each other. An instruction set that no
    other test takes is not compiled for this one: portable kernels stand for its own."""
    if name not in TESTED:
        portable = library.load("portable", 1)
        monkeypatch.setattr(library, "load", lambda *_: portable)
    monkeypatch.setattr(bfloat16_products, "known_times", None)
    asked = settings(dtype="bfloat16", threads=1, kernels=name)
    kernels = backend.kernels_of(asked, backend.device_of(asked))
    assert type(kernels) is CpuKernels
    assert arithmetic_of(asked, kernels, torch.device("cpu")) == name


def test_float32_has_no_choice(settings, monkeypatch) -> None:
    monkeypatch.setattr(bfloat16_products, "known_times", None)
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
