"""A step, taken apart."""

from collections.abc import Mapping
from typing import Any

from ops.bench.report.markdown import table
from ops.bench.report.plots import STEP, STEP_TOTALS, step_shapes

Results = Mapping[str, Any]


def by_part(results: Results, drawings: str) -> list[str]:
    shapes = step_shapes(results)
    figures = next(iter(shapes.values()))  # older results have fewer
    columns = [each for each in STEP_TOTALS if each in figures] + [
        each for each in figures if each not in STEP_TOTALS
    ]
    rows = [(name, *(one[each] for each in columns)) for name, one in shapes.items()]
    return [
        f"{results['threads']} threads; memory was read at {results['read_gb_s']} GB/s, and the best matrix "
        f"product did {results['matrix_gflop_s']} GFLOP/s: with these rates a step takes the floor at least.",
        "Milliseconds of a step in the worker, the floor, and where the step's time goes.",
        table(("", *columns), rows),
        f"![{STEP[1]}]({drawings}/{STEP[0]})",
        "Milliseconds that a plan and its result cost the scheduler, by decoding sequences, and with 32 of "
        "them by requests that wait.",
        _by_number("decodes", results["scheduler_ms_by_batch"]),
        _by_number("waiting", results["scheduler_ms_by_waiting"]),
        "Milliseconds on the queue, both ways, where no plan is sent ahead: a deployment hides them behind "
        "the step before.",
        _by_number("decodes", results["queue_ms_by_batch"]),
    ]


def _by_number(name: str, times: Mapping[str, float]) -> str:
    return table((name, *times), [("ms", *times.values())])
