"""Where the figures stand in the results of each kind of benchmark."""

from collections.abc import Callable, Mapping
from typing import Any

Results = Mapping[str, Any]
Look = Callable[[Results], float | None]
"""The figure, from the results of a benchmark; None if they do not have it."""

STATIC = "transformers static"
"""The competitor that pads a batch and generates until its longest answer has ended."""


def at(*keys: str) -> Look:
    """The figure under these keys, one inside the other."""

    def look(results: Results) -> float | None:
        found: Any = results
        for key in keys:
            if not isinstance(found, Mapping) or key not in found:
                return None
            found = found[key]
        return float(found)

    return look


def over_static(users: int, figure: str, model: str = "135m", dtype: str = "") -> Look:
    """Quire's figure over that of transformers' static batching, with `users` requests at once: the median of
    the rounds. `dtype`: type of weights and activations that counts; empty: any."""

    def look(results: Results) -> float | None:
        terms = results["terms"]
        if terms["model"] != model or dtype not in ("", terms["dtype"]):
            return None
        for load in results["loads"]:
            if load["concurrency"] == users:
                return at("ratios", STATIC, figure, "median")(load)
        return None

    return look


def shipped_over_static(users: int) -> Look:
    """The same of the shipped model in float32, in the check of a machine's kernels: with the instruction set
    with which it is least."""

    def look(results: Results) -> float | None:
        shipped = [models["shipped"] for models in results["answers"].values() if "shipped" in models]
        rates = [one["output tokens a second"].get(str(users), {}) for one in shipped]
        found = [each["quire"] / each[STATIC] for each in rates if each.get(STATIC)]
        return min(found, default=None)

    return look


def over_the_best(model: str, users: int) -> Look:
    """Quire's tokens a second over those of the engine that comes closest, with `users` requests at once.

    Transformers alone are not the field, and weights are as in the checkpoint.
    """

    def look(results: Results) -> float | None:
        terms = results["terms"]
        if terms["model"] != model or terms.get("quantization", "none") != "none":
            return None
        loads = [load["ratios"] for load in results["loads"] if load["concurrency"] == users]
        field = [each for each in loads if not all(name.startswith("transformers") for name in each)]
        rates = [at("output_rate", "median")(one) for each in field for one in each.values()]
        known = [rate for rate in rates if rate is not None]
        # An engine with wrong answers has no ratio, and might have been the best.
        return min(known) if known and len(known) == len(rates) else None

    return look


def over_the_floor(model: str, decodes: int) -> Look:
    """A step of `decodes` decodes over the least that it could take on the machine."""

    def look(results: Results) -> float | None:
        steps = results["decode_by_batch"] if results["model"] == model else {}
        return at(str(decodes), "times the floor")(steps)

    return look


def share_of_the_matrix_rate(model: str, tokens: int) -> Look:
    """A prefill's floor is the time of its operations at the best rate of a product of matrices."""

    def look(results: Results) -> float | None:
        times = at(str(tokens), "times the floor")(results["prefill"] if results["model"] == model else {})
        return None if times is None else 1 / times

    return look


def with_over_without(model: str, mechanism: str, figure: str) -> Look:
    """A figure with the mechanism over that without it: the median of the rounds."""

    def look(results: Results) -> float | None:
        one = results.get(mechanism, {})
        return float(one["figures"][figure]["ratio"][1]) if one.get("model") == model else None

    return look


def of_traces(rate: float, *path: str) -> Look:
    """A median at this rate."""

    def look(results: Results) -> float | None:
        found = at(*path, "median")(results)
        return found if results.get("rate") == rate else None

    return look


def with_it(model: str, mechanism: str, figure: str) -> Look:
    """A figure with the mechanism: the median of the rounds."""

    def look(results: Results) -> float | None:
        one = results.get(mechanism, {})
        return float(one["figures"][figure]["with"]) if one.get("model") == model else None

    return look


def lowest_over_in_process(results: Results) -> float | None:
    """Where the chain of processes does worst: tokens a second over those of the engine in one process."""
    rates = results["output_tokens_per_second"].values()
    return min((float(rate["ratio"][1]) for rate in rates), default=None)


def slowest_pool(kind: str) -> Look:
    """Blocks taken and given back a second, at the size of a pool at which it is slowest."""
    return lambda results: min(size[kind]["p50"] for size in results["blocks_per_second"].values())


def largest_over_smallest_pool(kind: str) -> Look:
    def look(results: Results) -> float:
        rates = {int(size): rate[kind]["p50"] for size, rate in results["blocks_per_second"].items()}
        return float(rates[max(rates)] / rates[min(rates)])

    return look


def fair_in_a_flood(results: Results) -> float | None:
    """Jain's index over tenants while one of them floods, under the policy where it is least."""
    if results.get("load", {}).get("kind") != "flood":
        return None
    found = [run["fairness"] for run in results["runs"]]
    return min(found, default=None)


def million(results: Results) -> float | None:
    """Minutes of one core that the slowest million requests took."""
    seconds = [run["seconds"] for run in results["runs"] if run["requests"] >= 1_000_000]
    return max(seconds) / 60 if seconds else None
