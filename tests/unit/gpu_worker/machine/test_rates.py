"""The rates of a machine are measured with the model's type and threads."""

from collections.abc import Callable

import pytest
import torch

from gpu_worker.machine import rates
from gpu_worker.machine.rates import Rates, measured


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rates_are_those_of_a_machine(monkeypatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(rates, "MATRIX", 128)
    before = torch.get_num_threads()
    found = measured(dtype, 1, read_bytes=1 << 20)
    assert 1e6 < found.read < 1e13
    assert 1e6 < found.matrix < 1e15
    assert torch.get_num_threads() == before


def test_the_best_product_counts(monkeypatch) -> None:
    """It may be one of widened numbers in oneDNN's layout, if nothing multiplies bfloat16."""
    asked: list[torch.dtype] = []

    def seconds(run: Callable[[], object], most: float) -> float:
        result = run()
        if not isinstance(result, torch.Tensor) or result.dim() == 0:
            return 1.0
        asked.append(result.dtype)
        return 0.5 if len(asked) == 3 else 2.0

    monkeypatch.setattr(rates, "MATRIX", 64)
    monkeypatch.setattr(rates, "has_onednn_bfloat16", lambda: False)
    monkeypatch.setattr(rates, "_seconds", seconds)
    found = measured(torch.bfloat16, 1, read_bytes=1 << 20)
    assert asked == [torch.bfloat16, torch.float32, torch.float32]
    assert found.matrix == 2 * 64**3 / 0.5


@pytest.mark.parametrize(
    ("runs", "most", "median"),
    [([50, 9, 1, 2, 1, 1], float("inf"), 1), ([5, 4], 1, 4), ([1, 3, 2, 9], 5, 2.5)],
)
def test_the_median_counts_and_a_slow_machine_is_not_waited_for(
    monkeypatch, runs: list[float], most: float, median: float
) -> None:
    """The first run warms up, but counts for the time that is spent."""
    now, left = [0.0], list(runs)
    monkeypatch.setattr(rates.time, "perf_counter", lambda: now[0])

    def run() -> None:
        now[0] += left.pop(0)

    assert rates._seconds(run, most) == median
    assert len(runs) - len(left) <= 1 + rates.TRIES


def test_rates_for_a_person() -> None:
    assert Rates(38.04e9, 1.23e12).describe("avx512_bf16") == {
        "products": "1.2 TFLOP/s (avx512_bf16)",
        "memory": "38 GB/s",
    }
    assert Rates(9.5e9, 84e9).describe("avx2")["products"] == "84 GFLOP/s (avx2)"
