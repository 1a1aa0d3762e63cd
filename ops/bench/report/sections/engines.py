"""Quire as its users see it: beside other engines, beside itself in one process, under a load."""

from collections.abc import Mapping
from typing import Any

from ops.bench.report.markdown import cell, number, spread, table, triple
from ops.bench.report.plots import COMPARE

Results = Mapping[str, Any]

LATENCIES = ("first_token", "between_tokens", "end_to_end")
RATIOS = {
    "output_rate": "output tokens/s",
    "ttft_p50": "TTFT P50",
    "ttft_p99": "P99",
    "itl_p50": "ITL P50",
    "itl_p99": "P99",
    "e2e_p50": "E2E P50",
    "e2e_p99": "P99",
}
SUMMARY_HEAD = ("output tokens/s", "TTFT P50", "P99", "ITL P50", "P99", "E2E P50", "P99")
THROUGHPUT = "compare_throughput.svg"
"""The one drawing in the report. Its tables have the figures of the others."""
TIMES = "TTFT is the time to the first token, ITL the time between tokens, E2E that of a whole answer, in ms."


def subject(results: Results) -> str:
    """Model and type of numbers, as far as they are told."""
    terms = results.get("terms", results)
    told = [str(terms[key]) for key in ("model", "dtype") if key in terms]
    quantization = terms.get("quantization", "none")
    return ", ".join(told if quantization == "none" else [*told, f"weights in {quantization}"])


def compared(results: Results, drawings: str) -> list[str]:
    contest, terms, loads = results["contest"], results["terms"], results["loads"]
    workload = contest["workload"]
    least, most = workload["output_lengths"]
    answers = str(least) if least == most else f"{least} to {most}"
    figures = [
        (load["concurrency"], name, *_summary(found["all"]), found["wrong"])
        for load in loads
        for name, found in load["competitors"].items()
    ]
    ratios = [
        (load["concurrency"], name, *(_ratio(one.get(figure)) for figure in RATIOS))
        for load in loads
        for name, one in load["ratios"].items()
    ]
    return [
        f"The same questions to all, in turns, {contest['rounds']} rounds: prompts of "
        f"{cell(workload['prompt_lengths'])} tokens, answers of {answers}; {terms['threads']} threads each. "
        f"{_rest(loads)}",
        f"What each engine did, by requests at once. {TIMES}",
        table(("at once", "engine", *SUMMARY_HEAD, "wrong answers"), figures),
        "Quire over the others: the median of the rounds, and in brackets the lowest and the highest. "
        "Of tokens a second more is better, of times less.",
        table(("at once", "over", *RATIOS.values()), ratios),
        *_batches(loads),
        f"![{COMPARE[THROUGHPUT]}]({drawings}/{THROUGHPUT})",
        *_remarks(results),
        *([] if "openmp" in results else [ASLEEP]),
    ]


ASLEEP = (
    "In this run OpenMP's threads of other engines had to wait asleep, as those of Quire's worker do. That "
    "slows llama.cpp, vLLM and transformers; OpenVINO has threads of another kind."
)
"""Of results from before `peer_environment`."""


def _rest(loads: list[Results]) -> str:
    shares = (found["others_cpu_share"] for load in loads for found in load["competitors"].values())
    return f"While one was measured the others took at most {number(100 * max(shares))} % of a core."


def _summary(found: Results) -> list[object]:
    times = [found[kind].get(share) for kind in LATENCIES for share in ("p50", "p99")]
    return [found["output_rate"], *times]


def _ratio(found: Mapping[str, float] | None) -> str:
    return spread(found) if found else "-"


def _batches(loads: list[Results]) -> list[str]:
    rows = [
        (
            load["concurrency"],
            name,
            batch["batch_efficiency"],
            batch["kv_held_peak_mib"],
            batch["kv_wasted_share"],
        )
        for load in loads
        for name, found in load["competitors"].items()
        if (batch := found["batch"])
    ]
    head = (
        "at once",
        "engine",
        "needed of the tokens computed",
        "KV held, peak MiB",
        "wasted of the KV held",
    )
    return ["How much of what was computed and held had to be, as shares.", table(head, rows)] if rows else []


def _remarks(results: Results) -> list[str]:
    remarks = [f"Not there: {name} ({reason})." for name, reason in results["absent"].items()]
    remarks += [
        f"Of {one['asked']} greedy answers {one['same']} are the same as those of {one['with']}."
        for one in results["agreement"]
    ]
    return remarks


def in_process(results: Results, drawings: str) -> list[str]:
    rows = [
        (users, rates["chain"], rates["in_process"], triple(rates["ratio"]))
        for users, rates in results["output_tokens_per_second"].items()
    ]
    return [
        "Output tokens a second, once through all processes over HTTP, and once with scheduler and worker in "
        "one process. The ratio shows what HTTP, text, Redis streams and separate processes cost.",
        table(("at once", "chain", "one process", "chain over one process"), rows),
    ]


def served(results: Results, drawings: str) -> list[str]:
    rows = [
        (name, one["requests"], one["errors"], *_summary(one), one["goodput"])
        for name, one in results["loops"].items()
    ]
    return [
        f"{_questions(results['asked'])} {TIMES}",
        table(("load", "requests", "errors", *SUMMARY_HEAD, "good answers/s"), rows),
    ]


def _questions(asked: Results) -> str:
    if asked["trace"]:
        return f"The questions of {asked['trace']} at their times."
    prompts = f"Prompts of {cell(asked['prompt_lengths'])} tokens"
    if asked["shared_prefix"]:
        prompts += f" after {asked['shared_prefix']} that all begin with"
    return f"{prompts}." if asked["turns"] == 1 else f"{prompts}, {asked['turns']} in a conversation."
