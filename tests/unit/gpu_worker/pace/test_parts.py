"""The time of a step by part, over every back end and without changing what it computes."""

import sys

import pytest
import torch

from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.cpu.kernels import Int4Kernels, QuantizedKernels
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.reference.quantized import QuantizedReference
from gpu_worker.pace import parts as module
from gpu_worker.pace.parts import ATTENTION, OTHER, PRODUCTS, SAMPLING, Parts
from tests.support.native import with_team
from tests.unit.gpu_worker.conftest import makers


def check_parts(make, directory) -> None:
    runner = make.runner(directory)
    driver = make.Driver(runner)
    driver.generate(driver.admit(0, [1, 2, 3]), 2)
    runner.reset()
    driver = make.Driver(runner)
    parts, sequence = Parts(), driver.admit(0, [5, 6, 7, 8])
    with parts:
        driver.step((sequence, 4))
    found = parts.by_part
    assert set(found) == {PRODUCTS, ATTENTION, SAMPLING, OTHER}
    assert all(seconds > 0 for seconds in found.values()), found
    assert sum(found.values()) == pytest.approx(parts.whole)
    assert 0 < parts.computing <= parts.whole * 1.5
    assert sys.getprofile() is None
    assert sequence.tokens[4:]


def test_every_back_end_s_parts_are_known(make, tiny) -> None:
    """A class that is renamed or added would otherwise count as Python."""
    check_parts(make, tiny.directory)


@pytest.mark.parametrize("kind", [QuantizedKernels, Int4Kernels])
def test_quantized_weights(tiny, kind) -> None:
    check_parts(makers(kind(with_team(build.supported()[0], 1))), tiny.directory)


@pytest.mark.parametrize("kernels", [QuantizedReference(torch.int8), Int4Reference()])
def test_quantized_weights_of_the_reference(tiny, kernels) -> None:
    check_parts(makers(kernels), tiny.directory)


class Packed:
    """Calls itself and others, as back ends do."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def __call__(self, depth: int, fails: bool = False) -> None:
        self.clock[0] += 1
        if depth:
            self(depth - 1)
        if fails:
            raise ValueError("no")


def test_time_counts_once_and_after_an_error_too(monkeypatch) -> None:
    monkeypatch.setitem(module._PART_OF, "Packed.__call__", PRODUCTS)
    clock = [0.0]
    product, parts = Packed(clock), Parts(lambda: clock[0])
    with parts:
        product(2)
        clock[0] += 10
    assert parts.by_part[PRODUCTS] == 3
    assert parts.by_part[OTHER] == 10
    with pytest.raises(ValueError, match="no"), parts:
        product(0, fails=True)
    assert parts.by_part[PRODUCTS] == 4
    parts.clear()
    assert parts.whole == 0
    product(0)  # outside of `with`
    assert parts.by_part[PRODUCTS] == 0


def test_another_profiler_goes_on_afterwards() -> None:
    seen = []
    sys.setprofile(lambda *_: seen.append(1))
    try:
        with Parts():
            pass
        before = len(seen)
        sorted([2, 1])
        assert len(seen) > before
    finally:
        sys.setprofile(None)
