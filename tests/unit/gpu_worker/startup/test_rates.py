"""A machine's rates are measured at a worker's first start, and kept."""

import pytest
import torch

from gpu_worker.kernels.cpu import build
from gpu_worker.machine import rates as machine
from gpu_worker.machine.rates import Rates
from gpu_worker.startup import rates


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "cache", lambda: tmp_path)
    monkeypatch.setattr(machine, "MATRIX", 64)
    monkeypatch.setattr(machine, "READ_BYTES", 1 << 16)
    monkeypatch.setattr(rates, "LEAST_BYTES", 1 << 10)
    return tmp_path


def test_measured_once(folder, settings, monkeypatch) -> None:
    found = rates.rates_of(settings(threads=1))
    assert found.read > 0
    assert found.matrix > 0
    monkeypatch.setattr(machine, "measured", None)  # whoever measures again fails
    assert rates.rates_of(settings(threads=1)) == found
    with pytest.raises(TypeError):
        rates.rates_of(settings(threads=2))
    with pytest.raises(TypeError):
        rates.rates_of(settings(threads=1, dtype="bfloat16"))


@pytest.mark.parametrize("kept", ["{}", "[]", '{"read": 0, "matrix": 1}', '{"read": NaN, "matrix": 1}'])
def test_what_cannot_be_read_is_measured_again(folder, settings, monkeypatch, kept: str) -> None:
    monkeypatch.setattr(machine, "measured", lambda *_: Rates(1.0, 2.0))
    rates.rates_of(settings())
    (file,) = folder.glob("rates-*.json")
    file.write_text(kept)
    assert rates.rates_of(settings()) == Rates(1.0, 2.0)


def test_it_takes_no_more_memory_than_there_is(folder, settings, monkeypatch) -> None:
    read = []
    monkeypatch.setattr(rates, "available", lambda: 8 * rates.LEAST_BYTES)
    monkeypatch.setattr(machine, "measured", lambda dtype, threads, size, _: read.append(size) or Rates(1, 1))
    rates.rates_of(settings())
    assert read == [rates.LEAST_BYTES]


def test_where_hardly_any_memory_is_free_nothing_is_measured(folder, settings, monkeypatch) -> None:
    """It would be the rate of caches, and kept."""
    monkeypatch.setattr(rates, "available", lambda: 8 * rates.LEAST_BYTES - 8)
    monkeypatch.setattr(machine, "measured", None)
    assert rates.rates_of(settings()) is None


@pytest.mark.parametrize("changes", [{"dtype": "float16"}, {"tensor_parallel": 2, "threads": 2}])
def test_where_steps_are_not_compared_nothing_is_measured(folder, settings, monkeypatch, changes) -> None:
    monkeypatch.setattr(machine, "measured", None)
    assert rates.rates_of(settings(**changes)) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_is_not_measured(folder, settings) -> None:
    assert rates.rates_of(settings(device="cuda")) is None
