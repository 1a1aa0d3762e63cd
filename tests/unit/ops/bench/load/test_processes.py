"""What a deployment's processes use, as benchmarks see it."""

import os
import time

import pytest

from ops.bench.load.processes import cpu_seconds


def own() -> float:
    return cpu_seconds({"here": os.getpid()})["here"]


def test_cpu_time_is_that_of_the_process_alone() -> None:
    used = own()
    assert abs(used - time.process_time()) < 1
    while time.process_time() < used + 0.1:
        pass
    assert own() >= used + 0.1


@pytest.mark.skipif("sys.platform != 'linux'", reason="elsewhere psutil counts")
def test_it_is_counted_finer_than_in_steps_of_10_ms() -> None:
    found = {own() for _ in range(20)}
    assert len(found) == 20
