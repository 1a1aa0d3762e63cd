"""Result files that nobody measured."""

from collections.abc import Callable
from typing import Any

import pytest

from ops.bench.record import Record

MACHINE = {"cpu": "Abacus", "cores": 2, "memory_gib": 1.5, "system": "Linux", "python": "3.11.0"}


@pytest.fixture
def made_up() -> Callable[..., Record]:
    def make(benchmark: str, results: dict[str, Any], name: str = "", **machine: str) -> Record:
        return Record(
            name=name or benchmark,
            benchmark=benchmark,
            date="2026-02-03T04:05:06+00:00",
            commit="abc1234",
            seed=7,
            machine=MACHINE | machine,
            versions={"torch": "2.0"},
            results=results,
        )

    return make


def _summary(rate: float, milliseconds: float) -> dict[str, Any]:
    times = {"p50": milliseconds, "p90": milliseconds, "p99": milliseconds}
    return {"output_rate": rate} | dict.fromkeys(("first_token", "between_tokens", "end_to_end"), times)


@pytest.fixture
def contest() -> Callable[..., dict[str, Any]]:
    """Results of a comparison with transformers' static batching: its rate is 10, its times are 100 ms."""

    def make(
        model: str = "135m", users: int = 32, rate: float = 50, milliseconds: float = 40
    ) -> dict[str, Any]:
        paces = {"quire": (rate, milliseconds), "transformers static": (10.0, 100.0)}
        spread = {
            figure: {"median": ratio, "lowest": ratio / 2, "highest": ratio * 2}
            for figure, ratio in (("output_rate", rate / 10), ("ttft_p99", milliseconds / 100))
        }
        return {
            "terms": {"model": model, "dtype": "bfloat16", "threads": 2},
            "contest": {"rounds": 3, "workload": {"prompt_lengths": [32], "output_lengths": [64, 64]}},
            "absent": {"third": "no such program"},
            "loads": [
                {
                    "concurrency": users,
                    "competitors": {
                        name: {
                            "all": _summary(*pace),
                            "rounds": [_summary(*pace)],
                            "wrong": 0,
                            "others_cpu_share": 0.01,
                            "batch": None,
                        }
                        for name, pace in paces.items()
                    },
                    "ratios": {"transformers static": spread},
                }
            ],
            "agreement": [{"with": "transformers static", "asked": 3, "same": 2}],
        }

    return make
