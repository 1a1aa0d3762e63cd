"""What simulated deployments do, how far the simulator is off, and what it costs."""

from collections.abc import Mapping
from typing import Any

from ops.bench.report.markdown import number, spread, table
from ops.bench.report.simulation import DRAWINGS, IN_THE_REPORT

Results = Mapping[str, Any]

TERMS = {
    "step": "each step",
    "row": "each decode",
    "prefill": "each prompt token",
    "context": "each token that a decode reads",
    "pair": "each token that a prompt token reads",
    "idle": "a worker that had nothing to do",
}


def subject(results: Results) -> str:
    """The load."""
    load = results.get("load")
    if load is None:
        return str(results["trace"])
    return f"{load['requests']} requests, {load['kind']}, {number(load['rate'])} a second"


def compared(results: Results, drawings: str) -> list[str]:
    rows = [
        (
            run["name"],
            run["output_rate"],
            spread(run["first_token_ms"]),
            spread(run["urgent_first_token_ms"]),
            spread(run["between_tokens_ms"]),
            f"{100 * run['cached_share']:.1f} %",
            run["preempted"],
            run["fairness"],
            f"{100 * run['in_time_share']:.1f} %",
        )
        for run in results["runs"]
    ]
    head = (
        "",
        "tokens/s",
        "TTFT, ms",
        "of the urgent",
        "ITL, ms",
        "prompts cached",
        "preempted",
        "fairness",
        "in time",
    )
    return [
        "The scheduler's core under virtual time; nothing was computed. Times are P50 / P90 / P99: TTFT to "
        "the first token, ITL between tokens. Urgent are those that no priority comes before. "
        "Fairness is Jain's index over tenants; in time are answers that ended within their timeout.",
        table(head, rows),
        *(f"![{DRAWINGS[name]}]({drawings}/{name})" for name in IN_THE_REPORT),
    ]


def validated(results: Results, drawings: str) -> list[str]:
    rate, *times = results["loads"][0]["error"]
    rows = [
        (
            f"{each['load']['kind']}, {number(each['load']['rate'])} a second",
            *(f"{100 * each['error'][figure]:+.1f} %" for figure in (rate, *times)),
        )
        for each in results["loads"]
    ]
    return [
        "The same requests at the same times, simulated and computed in earnest by the core and a runner in "
        "one process: how much more or less the simulator says.",
        table(("load", "tokens/s", *times), rows),
    ]


def costs(results: Results, drawings: str) -> list[str]:
    terms = [(words, f"{1000 * results['cost_ms'][term]:.4g}") for term, words in TERMS.items()]
    return [
        f"Fitted to {len(results['steps']) - results['held_back']} measured steps, {results['threads']} "
        f"threads. It misses {results['held_back']} others by {100 * results['error_mean']:.1f} % in the "
        f"mean, nine of ten by less than {100 * results['error_p90']:.1f} %.",
        table(("what a step costs", "µs"), terms),
    ]


def scale(results: Results, drawings: str) -> list[str]:
    keys = {
        "workers": "workers",
        "requests": "requests",
        "rate_per_worker": "a second and worker",
        "output_tokens": "tokens",
        "seconds": "seconds",
        "us_per_request": "µs a request",
        "peak_mib": "peak MiB",
    }
    return [
        "On one core; seconds of its CPU.",
        table(tuple(keys.values()), [tuple(run[key] for key in keys) for run in results["runs"]]),
    ]
