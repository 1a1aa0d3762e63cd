"""The CPU kernels of one machine, by instruction set."""

from collections.abc import Mapping
from typing import Any

from ops.bench.report.markdown import table
from ops.bench.report.sections import kernels
from ops.bench.report.sections.engines import ASLEEP

Results = Mapping[str, Any]


def subject(results: Results) -> str:
    """The best instruction set of the processor."""
    return next((f"up to {name}" for by_set in results["steps"].values() for name in by_set), "")


def checked(results: Results, drawings: str) -> list[str]:
    blocks = []
    for form, by_set in results["steps"].items():
        shapes = list(next(iter(by_set.values()))["steps"])
        rows = [
            (name, *(_beside_floor(found["steps"][shape]) for shape in shapes))
            for name, found in by_set.items()
        ]
        blocks += [f"Weights in {form}:", table(("kernels", *shapes), rows)]
    if blocks:
        blocks.insert(
            0,
            "Milliseconds of a step of the 135M shape, and in brackets over its floor: the time that memory "
            "and arithmetic of the machine need at least. Sequences that decode have 256 tokens.",
        )
    for alone in results.get("kernels", {}).values():
        blocks += kernels.products(alone["products"], drawings)
        blocks += kernels.attention(alone["attention"], drawings)
    for name, models in results["answers"].items():
        for model, found in models.items():
            blocks += [f"Output tokens a second, all engines held to {name}; {model}, {found['dtype']}:"]
            rates = found["output tokens a second"]
            engines = list(next(iter(rates.values())))
            rows = [
                (engine, *(f"{by_engine[engine]:.1f}" for by_engine in rates.values())) for engine in engines
            ]
            blocks.append(table(("requests at once", *rates), rows))
            blocks += [] if "openmp" in found else [ASLEEP]
    for what in ("wrong", "left out"):
        if results[what]:
            blocks.append(f"{what.capitalize()}: {'; '.join(results[what])}.")
    return blocks


def _beside_floor(step: Mapping[str, float]) -> str:
    return f"{step['ms']:.1f} ({step['times the floor']:.2f})"
